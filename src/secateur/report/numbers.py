"""Numbers as people read them."""

from __future__ import annotations

__all__ = ["byte_text", "metric_text", "milliseconds", "short_count"]


def metric_text(metric_name: str, value: float) -> str:
    """Accuracy in per cent; of another metric nobody knows the unit."""
    return f"{value:.1%}" if metric_name == "accuracy" else f"{value:.4g}"


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def short_count(count: float) -> str:
    """Three digits and a unit, such as 10.2 M."""
    for unit in " kMG":
        if count < 999.5:
            return f"{count:.3g} {unit}".rstrip()
        count /= 1000
    return f"{count:.3g} T"


def byte_text(count: int) -> str:
    text = short_count(count)
    return f"{text}B" if " " in text else f"{text} B"
