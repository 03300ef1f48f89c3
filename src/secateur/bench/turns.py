"""`time_in_turns`: a comparison of running times that holds on a machine that is never quiet.

The calls take turns (forwards, then backwards), in samples of at least a millisecond, so that a disturbance hits all of
them alike. The statistic is the mean of the lower half of the samples; the interval of each ratio comes from a
bootstrap over the turns. A null control always takes part: how far apart the timer puts two identical calls is noise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from secateur.bench.clocks import Clock, thread_clock
from secateur.bench.timing import Timing

NULL_CONTROL = "null control"

SAMPLE_SECONDS = 1e-3
# Shorter calls run once before their time counts, to bring their data back to the cache: otherwise each would pay for
# what ran before it, but for the first and the last in turn, which run twice in a row.
WARMED_BELOW = 10e-3
MIN_ROUNDS, MAX_ROUNDS, ROUNDS_BETWEEN_LOOKS = 20, 400, 10
BOOTSTRAPS = 400

BoundCall = Callable[[], Any]
"""With its inputs already in it."""


@dataclass(frozen=True)
class Turns:
    """Timings as ratios to the first of them."""

    timings: Mapping[str, Timing]
    control: Timing
    """The first against itself, or against its own copy: how far apart the timer puts two identical calls."""

    def __getitem__(self, name: str) -> Timing:
        return self.timings[name]


class Timer(Protocol):
    """`time_in_turns`, or what stands in for it in tests."""

    def __call__(self, calls: Mapping[str, BoundCall], *, max_seconds: float, clock: Clock = ...) -> Turns: ...


def time_in_turns(
    calls: Mapping[str, BoundCall],
    *,
    control: BoundCall | None = None,
    clock: Clock = thread_clock,
    max_seconds: float = 30.0,
    min_rounds: int = MIN_ROUNDS,
    on_round: Callable[[], Any] = lambda: None,
) -> Turns:
    """Times the calls against the first of them, until every interval is narrow or the time is up.

    Args:
        calls: by name.
        control: does the same as the first call; by default the first call itself.
        clock: to time them by.
        max_seconds: when to stop even though an interval is still wide.
        min_rounds: how often each takes its turn at least.
        on_round: called after every round.
    """
    everyone = {**calls, NULL_CONTROL: control or next(iter(calls.values()))}
    names = list(everyone)
    singles = {name: _seconds_of_one(call, clock) for name, call in everyone.items()}
    repeats = {name: max(1, math.ceil(SAMPLE_SECONDS / seconds)) for name, seconds in singles.items()}
    samples: dict[str, list[float]] = {name: [] for name in names}
    waits: dict[str, list[float]] = {name: [] for name in names}
    deadline = time.monotonic() + max_seconds
    for rounds in range(1, MAX_ROUNDS + 1):
        for name in names if rounds % 2 else reversed(names):
            if singles[name] < WARMED_BELOW:
                everyone[name]()
            started = time.perf_counter()
            samples[name].append(clock(everyone[name], repeats[name]) / repeats[name])
            waits[name].append((time.perf_counter() - started) / repeats[name])
        on_round()
        if rounds >= min_rounds and (rounds == min_rounds or rounds % ROUNDS_BETWEEN_LOOKS == 0):
            timings = _summarise(samples, waits)
            if all(timing.settled for timing in timings.values()) or time.monotonic() > deadline:
                break
    return Turns(timings, timings.pop(NULL_CONTROL))


def _seconds_of_one(call: BoundCall, clock: Clock) -> float:
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
