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
from typing import Any

import numpy as np

__all__ = ["Timing", "compare"]

SAMPLE_SECONDS = 1e-3
TARGET_HALF_WIDTH = 0.02
MIN_ROUNDS, MAX_ROUNDS, ROUNDS_BETWEEN_LOOKS = 20, 400, 10
BOOTSTRAPS = 400


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, and the ratio to the baseline's with its 95 % interval."""

    seconds: float
    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def settled(self) -> bool:
        """Whether the interval became narrow enough for a verdict."""
        return (self.high - self.low) / 2 <= TARGET_HALF_WIDTH * self.ratio

    def overlaps(self, other: Timing) -> bool:
        return self.low <= other.high and other.low <= self.high

    def __str__(self) -> str:
        return f"{self.ratio:.2f} [{self.low:.2f}, {self.high:.2f}]"


def compare(
    calls: Mapping[str, Callable[[], Any]],
    *,
    clock: Callable[[], float] = time.thread_time,
    max_seconds: float = 30.0,
    min_rounds: int = MIN_ROUNDS,
) -> dict[str, Timing]:
    """Times the calls against the first of them, until every interval is narrow or the time is up.

    The default clock is the CPU time of this thread; pass `time.perf_counter` for calls that use several.
    """
    names = list(calls)
    repeats = {name: _calls_per_sample(call, clock) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in names}
    deadline = time.monotonic() + max_seconds
    for rounds in range(1, MAX_ROUNDS + 1):
        for name in names if rounds % 2 else reversed(names):
            started = clock()
            for _ in range(repeats[name]):
                calls[name]()
            samples[name].append((clock() - started) / repeats[name])
        if rounds >= min_rounds and (rounds == min_rounds or rounds % ROUNDS_BETWEEN_LOOKS == 0):
            timings = _summarise({name: np.array(values) for name, values in samples.items()}, names[0])
            if all(timing.settled for timing in timings.values()) or time.monotonic() > deadline:
                break
    return timings


def _calls_per_sample(call: Callable[[], Any], clock: Callable[[], float]) -> int:
    for _ in range(2):  # the first calls allocate memory and choose kernels
        call()
    started = clock()
    call()
    return max(1, math.ceil(SAMPLE_SECONDS / max(clock() - started, 1e-7)))


def _summarise(samples: Mapping[str, np.ndarray], baseline: str) -> dict[str, Timing]:
    rounds = len(samples[baseline])
    turns = np.random.default_rng(0).integers(0, rounds, (BOOTSTRAPS, rounds))
    base = _low_half_mean(samples[baseline])
    base_bootstrap = _low_half_mean(samples[baseline][turns])
    timings = {}
    for name, values in samples.items():
        seconds = _low_half_mean(values)
        low, high = np.quantile(_low_half_mean(values[turns]) / base_bootstrap, [0.025, 0.975])
        timings[name] = Timing(float(seconds), float(seconds / base), float(low), float(high), rounds)
    return timings


def _low_half_mean(values: np.ndarray) -> np.ndarray:
    """Robust against preemption, which only ever adds time, and steadier than the minimum."""
    half = max(1, values.shape[-1] // 2)
    return np.asarray(np.sort(values, axis=-1)[..., :half].mean(-1))
