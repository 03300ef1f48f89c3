"""`Timing`: how long a call takes beside a baseline, and what may be claimed of it. The only rule for such claims."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

TARGET_HALF_WIDTH = 0.02
MATTERS = 0.05
"""How far from 1 a ratio has to be for anybody to care."""

Verdict = Literal["faster", "slower", "no different", "too noisy"]


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, and the ratio to the baseline's with its 95 % interval."""

    seconds: float
    ratio: float
    low: float
    high: float
    rounds: int
    median: float = math.nan
    """Of the wall clock, as is `p99`: what a caller waits, with whatever else the machine does."""
    p99: float = math.nan

    def __post_init__(self) -> None:
        numbers = (self.seconds, self.ratio, self.low, self.high)
        if not all(0 < number < math.inf for number in numbers) or self.rounds < 0:
            raise ValueError(f"{numbers} in {self.rounds} rounds is not a measurement")
        if math.isinf(self.median) or math.isinf(self.p99):
            raise ValueError("it waits forever")

    @property
    def settled(self) -> bool:
        """Whether the interval is so narrow that more rounds would not tell more."""
        return (self.high - self.low) / 2 <= TARGET_HALF_WIDTH * self.ratio

    def is_faster(self, control: Timing, by: float = 0.0) -> bool:
        """Beyond the noise: than the baseline and than the null control, the baseline timed against itself."""
        return self.high < min(1, control.low) - by

    def is_slower(self, control: Timing, by: float = 0.0) -> bool:
        return self.low > max(1, control.high) + by

    def verdict(self, control: Timing) -> Verdict:
        if self.is_faster(control):
            return "faster"
        if self.is_slower(control):
            return "slower"
        if self.low >= 1 - MATTERS and self.high <= 1 + MATTERS:
            return "no different"
        return "no different" if self.settled and control.settled else "too noisy"

    def in_words(self, control: Timing) -> str:
        """The verdict, to follow the ratio in a sentence or a table."""
        return {
            "faster": f"{1 / self.ratio:.2f} times as fast",
            "slower": f"takes {self.ratio:.2f} times as long",
            "no different": "within the noise",
            "too noisy": f"too noisy for a verdict after {self.rounds} rounds",
        }[self.verdict(control)]

    def __str__(self) -> str:
        return f"{self.ratio:.2f} [{self.low:.2f}, {self.high:.2f}]"
