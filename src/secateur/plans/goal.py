"""What a target says: "latency=0.5", "latency=3ms", "macs=50%", "params=2M", "size=4MB"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from secateur.base import UsageError, require_one_of

_UNITS = {
    "latency": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6},
    "macs": {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12},
    "params": {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9},
    "size": {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
}
_EXAMPLES = '"latency=0.5", "latency=3ms", "macs=50%", "params=2M" or "size=4MB"'


@dataclass(frozen=True)
class Goal:
    """How much of what is to be left: a share of the dense model's, or an absolute number in seconds, MACs, …"""

    what: str
    """ "latency", "macs", "params" or "size"."""
    value: float
    relative: bool
    text: str

    def absolute(self, dense: float) -> float:
        return self.value * dense if self.relative else self.value

    def at(self, progress: float, dense: float | None) -> Goal:
        """What is to be left after this part of the way. A model that was cut before no longer tells what it was
        dense, so `dense` does."""
        if not self.relative or (progress >= 1 and dense is None):
            return self
        share = self.value**progress
        text = self.text if progress >= 1 else f"{self.what}={share:.3g}"
        return Goal(self.what, share if dense is None else share * dense, dense is None, text)

    def __str__(self) -> str:
        return self.text


def parse_goal(target: str | Goal) -> Goal:
    if isinstance(target, Goal):
        return target
    if not isinstance(target, str):
        raise UsageError(f"The target is {target!r}; give a text such as {_EXAMPLES}.")
    what, equals, amount = (part.strip() for part in target.partition("="))
    require_one_of("target", what, _UNITS, f", such as {_EXAMPLES}")
    match = re.fullmatch(r"([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)\s*(%|[A-Za-zµ]*)", amount) if equals else None
    if match is None:
        raise UsageError(f"The target {target!r} has no amount that can be read; write it as {_EXAMPLES}.")
    number, unit = float(match[1]), match[2]
    if unit == "%" or (unit == "" and number <= 1):
        share = number / 100 if unit == "%" else number
        if not 0 < share < 1:
            raise UsageError(
                f"The target {target!r} leaves {share:.0%} of the {what}; give a share between 0 and 1, such as 0.5."
            )
        return Goal(what, share, True, f"{what}={amount}")
    known = {name.casefold(): factor for name, factor in _UNITS[what].items()}
    if unit.casefold() not in known:
        expected = ", ".join(f'"{what}=3{name}"' for name in _UNITS[what] if name)
        raise UsageError(f"The target {target!r} has no unit that fits; write a share such as 0.5, or {expected}.")
    if number == 0:
        raise UsageError(f"The target {target!r} leaves nothing; ask for more than 0.")
    return Goal(what, number * known[unit.casefold()], False, f"{what}={amount}")
