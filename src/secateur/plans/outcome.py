"""How a target was met: what was asked for, what was predicted, and what came out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from secateur.base import Finite, Must, UsageError, byte_text, count_text, milliseconds, printable


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

    def scaled(self, factor: float) -> Outcome:
        """The same on a machine that takes so many times as long."""
        names = ("dense", "asked", "predicted", "reached", "low", "high")
        attempts = tuple((factor * predicted, factor * measured) for predicted, measured in self.attempts)
        return replace(self, **{name: factor * getattr(self, name) for name in names}, attempts=attempts)

    def __str__(self) -> str:
        return printable(self._sentence)

    @property
    def _sentence(self) -> str:
        text = quantity(self.what, self.reached)
        of_dense = f"{self.reached / self.dense:.3f} × dense ({quantity(self.what, self.dense)})"
        if self.what != "latency":
            return f"target {self.target}: {text}, {of_dense}"
        chosen = next((measured for predicted, measured in self.attempts if predicted == self.predicted), self.reached)
        return (
            f"target {self.target}: at most {quantity(self.what, self.asked)}; measured {text}, {of_dense}, interval "
            f"{self.low / self.dense:.3f}–{self.high / self.dense:.3f}, null control {self.control[1]:.3f} "
            f"({self.control[0]:.3f}–{self.control[2]:.3f}); {quantity(self.what, chosen)} when it was chosen from "
            f"{count_text(len(self.attempts), 'candidate')}, predicted {quantity(self.what, self.predicted)}; "
            f"{self.measured_in}"
        )


def quantity(what: str, value: float) -> str:
    """A number with its unit, as people write it."""
    if what == "latency":
        return milliseconds(value)
    if what == "size":
        return byte_text(round(value))
    return f"{value:,.0f} {'MACs' if what == 'macs' else 'parameters'}"
