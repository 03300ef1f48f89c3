"""How a target was met: what was asked for, what was predicted, and what came out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from secateur.base import UsageError

__all__ = ["Outcome", "TargetUnreachable"]


class TargetUnreachable(UsageError):
    """Even with every group at its floor, the model stays above the target."""


@dataclass(frozen=True)
class Outcome:
    """In seconds, MACs, parameters or bytes."""

    target: str
    what: str
    dense: float
    asked: float
    predicted: float
    reached: float
    """Measured where the target is a latency; counted otherwise."""
    low: float = 0.0
    """The interval of what was measured, in the same unit; `control` is the null control's ratio to dense."""
    high: float = 0.0
    control: tuple[float, float, float] = (1.0, 1.0, 1.0)
    measured_in: str = ""
    """The runtime, precision, threads and batch of a latency."""
    attempts: tuple[tuple[float, float], ...] = ()
    """Predicted and measured, for every candidate that was tried."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(stored: dict[str, Any]) -> Outcome:
        attempts = tuple((float(a), float(b)) for a, b in stored["attempts"])
        low, ratio, high = stored["control"]
        return Outcome(**{**stored, "attempts": attempts, "control": (float(low), float(ratio), float(high))})

    def __str__(self) -> str:
        text = quantity(self.what, self.reached)
        of_dense = f"{self.reached / self.dense:.3f} × dense ({quantity(self.what, self.dense)})"
        if self.what != "latency":
            return f"target {self.target}: {text}, {of_dense}"
        error = self.predicted / self.reached - 1
        return (
            f"target {self.target}: measured {text}, {of_dense}, interval {self.low / self.dense:.3f}–"
            f"{self.high / self.dense:.3f}, null control {self.control[1]:.3f} ({self.control[0]:.3f}–"
            f"{self.control[2]:.3f}); predicted {quantity(self.what, self.predicted)} ({error:+.1%}) "
            f"at the last of {len(self.attempts)} candidates; {self.measured_in}"
        )


def quantity(what: str, value: float) -> str:
    """A number with its unit, as people write it."""
    if what == "latency":
        return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s"
    if what == "size":
        return f"{value / 1e6:.3g} MB"
    unit = {"macs": "MACs", "params": "parameters"}[what]
    return f"{value:,.0f} {unit}"
