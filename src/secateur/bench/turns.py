"""How everything here is timed: in turn, on one thread, with a null control beside every ratio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from secateur.bench.clocks import Clock, thread_clock
from secateur.bench.comparison import NULL_CONTROL
from secateur.bench.runtimes import Call
from secateur.bench.timing import Timing, time_in_turns

__all__ = ["Timer", "Turns", "time_calls"]


@dataclass(frozen=True)
class Turns:
    """Timings as ratios to the first of them."""

    timings: Mapping[str, Timing]
    control: Timing
    """The first once more: what the measurement made of no difference at all."""


class Timer(Protocol):
    """Times calls against the first of them, for about so many seconds."""

    def __call__(self, calls: Mapping[str, Call], max_seconds: float, clock: Clock = ...) -> Turns: ...


def time_calls(calls: Mapping[str, Call], max_seconds: float, clock: Clock = thread_clock) -> Turns:
    first = next(iter(calls.values()))
    timings = time_in_turns({**calls, NULL_CONTROL: first}, clock=clock, max_seconds=max_seconds)
    control = timings.pop(NULL_CONTROL)
    return Turns(timings, control)
