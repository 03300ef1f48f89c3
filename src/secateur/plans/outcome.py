"""How a target was met: what was asked for, what was predicted, and what came out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from secateur.base import Finite, Must, UsageError, byte_text, milliseconds, printable


class TargetUnreachable(UsageError):
    """Even with every group at its floor, the model stays above the target."""


@dataclass(frozen=True)
class Outcome:
    """In seconds, MACs, parameters or bytes."""

    target: str
    what: Annotated[str, Must(("latency", "macs", "params", "size").__contains__, "is nothing that a target names")]
    """ "latency", "macs", "params" or "size"."""
    dense: Finite
    asked: Finite
    predicted: Finite
    reached: Finite
    """Measured where the target is a latency; counted otherwise."""
    low: Finite = 0.0
    """The interval of what was measured, in the same unit; `control` is the null control's ratio to dense."""
    high: Finite = 0.0
    control: tuple[Finite, Finite, Finite] = (1.0, 1.0, 1.0)
    measured_in: str = ""
    """The runtime, precision, threads and batch of a latency."""
    attempts: tuple[tuple[Finite, Finite], ...] = ()
    """Predicted and measured, for every candidate that was tried."""

    def __post_init__(self) -> None:
        if not (self.dense > 0 and self.reached > 0):
            raise ValueError(f"{self.reached:g} of {self.dense:g} is no way to meet a target")

    def __str__(self) -> str:
        return printable(self._sentence)

    @property
    def _sentence(self) -> str:
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
        return milliseconds(value)
    if what == "size":
        return byte_text(round(value))
    return f"{value:,.0f} {'MACs' if what == 'macs' else 'parameters'}"
