"""A comparison of running times that holds on a machine that is never quiet.

The alternatives take turns (forwards, then backwards), in samples of at least a millisecond, so that a disturbance hits
all of them alike. The statistic is the mean of the lower half of the samples; the interval of each ratio comes from a
bootstrap over the turns.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from secateur.bench.clocks import Clock, thread_clock

__all__ = ["Outcome", "Timing", "time_in_turns"]

SAMPLE_SECONDS = 1e-3
# Shorter calls run once before their time counts, to bring their data back to the cache: otherwise each would pay for
# what ran before it, but for the first and the last in turn, which run twice in a row.
WARMED_BELOW = 10e-3
TARGET_HALF_WIDTH = 0.02
MIN_ROUNDS, MAX_ROUNDS, ROUNDS_BETWEEN_LOOKS = 20, 400, 10
BOOTSTRAPS = 400

Outcome = Literal["faster", "slower", "no different", "too noisy"]


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
        if not all(0 < number < math.inf for number in numbers):
            raise ValueError(f"is not a measurement: {numbers}")

    @property
    def settled(self) -> bool:
        """Whether the interval became narrow enough to say that there is no difference."""
        return (self.high - self.low) / 2 <= TARGET_HALF_WIDTH * self.ratio

    def outcome(self, control: Timing) -> Outcome:
        """What may be claimed, given what the measurement made of no difference at all."""
        if self.high < min(1, control.low):
            return "faster"
        if self.low > max(1, control.high):
            return "slower"
        return "no different" if self.settled and control.settled else "too noisy"

    def __str__(self) -> str:
        return f"{self.ratio:.2f} [{self.low:.2f}, {self.high:.2f}]"


def time_in_turns(
    calls: Mapping[str, Callable[[], Any]],
    *,
    clock: Clock = thread_clock,
    max_seconds: float = 30.0,
    min_rounds: int = MIN_ROUNDS,
    on_round: Callable[[], Any] = lambda: None,
) -> dict[str, Timing]:
    """Times the calls against the first of them, until every interval is narrow or the time is up."""
    names = list(calls)
    singles = {name: _seconds_of_one(call, clock) for name, call in calls.items()}
    repeats = {name: max(1, math.ceil(SAMPLE_SECONDS / seconds)) for name, seconds in singles.items()}
    samples: dict[str, list[float]] = {name: [] for name in names}
    waits: dict[str, list[float]] = {name: [] for name in names}
    deadline = time.monotonic() + max_seconds
    for rounds in range(1, MAX_ROUNDS + 1):
        for name in names if rounds % 2 else reversed(names):
            if singles[name] < WARMED_BELOW:
                calls[name]()
            started = time.perf_counter()
            samples[name].append(clock(calls[name], repeats[name]) / repeats[name])
            waits[name].append((time.perf_counter() - started) / repeats[name])
        on_round()
        if rounds >= min_rounds and (rounds == min_rounds or rounds % ROUNDS_BETWEEN_LOOKS == 0):
            timings = _summarise(samples, waits)
            if all(timing.settled for timing in timings.values()) or time.monotonic() > deadline:
                break
    return timings


def _seconds_of_one(call: Callable[[], Any], clock: Clock) -> float:
    clock(call, 2)  # the first calls allocate memory and choose kernels
    return max(min(clock(call, 1) for _ in range(3)), 1e-7)


def _summarise(samples: Mapping[str, list[float]], waits: Mapping[str, list[float]]) -> dict[str, Timing]:
    baseline = np.array(next(iter(samples.values())))
    rounds = len(baseline)
    turns = np.random.default_rng(0).integers(0, rounds, (BOOTSTRAPS, rounds))
    base, base_bootstrap = _low_half_mean(baseline), _low_half_mean(baseline[turns])
    timings = {}
    for name, own in samples.items():
        values = np.array(own)
        seconds = _low_half_mean(values)
        low, high = np.quantile(_low_half_mean(values[turns]) / base_bootstrap, [0.025, 0.975])
        median, p99 = np.quantile(waits[name], [0.5, 0.99])
        timings[name] = Timing(
            float(seconds), float(seconds / base), float(low), float(high), rounds, float(median), float(p99)
        )
    return timings


def _low_half_mean(values: np.ndarray) -> np.ndarray:
    """Robust against preemption, which only ever adds time, and steadier than the minimum."""
    half = max(1, values.shape[-1] // 2)
    return np.asarray(np.sort(values, axis=-1)[..., :half].mean(-1))
