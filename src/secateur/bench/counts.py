"""Which channel counts this machine likes, from what `secateur hardware` measured; planning rounds to them.

Larger layers use a kernel better, so the cost of a MAC falls as the count grows. What is left when that is taken away
is the *penalty* of a count: its time, over the time that the multiples of 32 on either side of it suggest. Counts are
told apart by the largest power of two that divides them, and the cost of choosing multiples of m is the mean penalty of
such counts, the odd ones among them as often as they occur.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

import numpy as np

from secateur.base import UsageError, from_json, require_one_of
from secateur.bench.hardware_cache import read_hardware_file
from secateur.bench.timing import Timing

MULTIPLES = (1, 2, 4, 8, 16, 32)
KINDS = {"convolution": "3×3 convolution", "linear": "linear layer", "depthwise": "3×3 depthwise convolution"}
"""What they are called in a sentence. The last has one filter for each channel, so its inputs are its outputs."""
TOLERANCE = 0.05
"""How much more a MAC may cost than with the best choice of counts."""


@dataclass(frozen=True)
class CountCurve:
    kind: str
    runtime: str
    counts: tuple[int, ...]
    timings: tuple[Timing, ...]
    """Of each count, as ratios to the first."""
    control: Timing

    @property
    def costs(self) -> dict[int, float]:
        """Seconds for each MAC, as ratios to the lowest of them."""
        power = 1 if self.kind == "depthwise" else 2
        costs = {count: t.seconds / count**power for count, t in zip(self.counts, self.timings, strict=True)}
        return {count: cost / min(costs.values()) for count, cost in costs.items()}

    @property
    def penalties(self) -> dict[int, float]:
        """The mean penalty of counts by the largest of MULTIPLES that divides them."""
        return penalties(dict(zip(self.counts, (timing.seconds for timing in self.timings), strict=True)))

    @property
    def multiple_of(self) -> int:
        return recommend(self.penalties)

    def penalty(self, count: int) -> float:
        return self.penalties[largest_divisor(count)]


def cached_curves() -> tuple[CountCurve, ...]:
    """What `secateur hardware` measured on this machine; none where it has not."""
    return read_hardware_file(lambda stored: from_json(tuple[CountCurve, ...], stored.get("counts"), "counts")) or ()


def liked_multiple(curves: Sequence[CountCurve], kind: str, runtime: str | None = None) -> int:
    """What the channel counts of a kind of layer should be multiples of: the largest that any of the curves asks for,
    or the one of a single runtime."""
    return max(curve.multiple_of for curve in _of_kind(curves, kind, runtime))


def expected_ratio(
    curves: Sequence[CountCurve], kind: str, before: int, after: int, runtime: str | None = None
) -> float:
    """Of a layer's times when one of its sides is cut from `before` channels to `after`.

    An estimate, from the MACs and from what such counts cost on average: 1 or more means that this layer will
    not get faster. Without a runtime, the worst of the measured ones.
    """
    if not 0 < after <= before:
        raise UsageError(f"A layer of {before} channels cannot be cut to {after}; keep 1 to {before}.")
    own = _of_kind(curves, kind, runtime)
    return max(after / before * curve.penalty(after) / curve.penalty(before) for curve in own)


def _of_kind(curves: Sequence[CountCurve], kind: str, runtime: str | None) -> list[CountCurve]:
    require_one_of("measured kind of layer", kind, KINDS)
    found = [curve for curve in curves if curve.kind == kind and runtime in (None, curve.runtime)]
    if not found:
        known = ", ".join(sorted({curve.runtime for curve in curves}))
        raise UsageError(f"{runtime} was not measured; choose one of {known}, or install it and measure again.")
    return found


def largest_divisor(count: int) -> int:
    return max(multiple for multiple in MULTIPLES if count % multiple == 0)


def penalties(seconds: Mapping[int, float]) -> dict[int, float]:
    """From seconds by count, from one multiple of 32 to another, with every divisor among them."""
    frame = sorted(count for count in seconds if count % MULTIPLES[-1] == 0)
    classes: dict[int, list[float]] = {multiple: [] for multiple in MULTIPLES}
    known = np.log(frame), np.log([seconds[count] for count in frame])
    for count, measured in seconds.items():
        # Time grows like a power of the count: a straight line between the logarithms.
        classes[largest_divisor(count)].append(log(measured) - float(np.interp(log(count), *known)))
    return {multiple: exp(fmean(logs)) for multiple, logs in classes.items()}


def recommend(by_divisor: Mapping[int, float]) -> int:
    """The smallest of MULTIPLES whose multiples cost, on average, at most a little more than the best choice."""
    costs = {multiple: _cost_of_multiples(multiple, by_divisor) for multiple in MULTIPLES}
    best = min(costs.values())
    return next(multiple for multiple in MULTIPLES if costs[multiple] <= (1 + TOLERANCE) * best)


def _cost_of_multiples(multiple: int, by_divisor: Mapping[int, float]) -> float:
    """Every other multiple of m is not one of 2m: half of them have m as their largest divisor, a quarter 2m, …"""
    if multiple == MULTIPLES[-1]:
        return by_divisor[multiple]
    return (by_divisor[multiple] + _cost_of_multiples(2 * multiple, by_divisor)) / 2
