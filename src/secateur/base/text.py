"""Numbers, names and plain-text tables, as objects print them of themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """The rows with their columns aligned, those numbered in `right` to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def count_text(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def some_of(names: Sequence[str], most: int = 3, between: str = ", ") -> str:
    more = f" +{len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more


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


def byte_text(count: float) -> str:
    text = short_count(count)
    return f"{text}B" if " " in text else f"{text} B"


def threads_text(threads: int) -> str:
    return "one thread" if threads == 1 else f"{threads} threads"
