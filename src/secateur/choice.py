"""How many units of each bundle go, and which: the amount, met as closely as whole steps and rounding allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, gcd

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from secateur.couple.bundles import Bundle
from secateur.couple.groups import Group
from secateur.errors import UsageError

__all__ = ["Budget", "choose_steps"]

# By default rounding moves the number of channels that stay by at most about 3 % of the group.
_FINEST = 16


@dataclass(frozen=True)
class Budget:
    """How amounts are turned into counts."""

    scope: str
    multiple_of: int | None
    floor: float
    parameter: Tensor
    """Any parameter of the model: its device and type decide which counts the hardware likes."""

    def __post_init__(self) -> None:
        if self.multiple_of is not None and (not isinstance(self.multiple_of, int) or self.multiple_of < 1):
            raise UsageError(f"multiple_of is {self.multiple_of!r}; give a whole number such as 8.")
        if not isinstance(self.floor, int | float) or not 0 <= self.floor < 1:
            raise UsageError(f"floor is {self.floor!r}; give the share of every group that has to stay, such as 0.1.")

    def multiple(self, group: Group) -> int:
        """What the number of units that stay should be a multiple of."""
        coordinates = min(member.coordinates for member in group.members)
        if self.multiple_of is not None:
            return self.multiple_of // gcd(self.multiple_of, coordinates)
        # Tensor cores work on tiles of 16 bytes, CPU kernels on vectors of up to 64 bytes, 16 numbers of float32.
        liked = max(1, 16 // self.parameter.element_size()) if self.parameter.is_cuda else 16
        while liked > 1 and liked * _FINEST > len(group):
            liked //= 2
        return liked // gcd(liked, coordinates)


def choose_steps(
    bundles: Sequence[Bundle],
    amounts: Mapping[int, float],
    shares: Mapping[int, float],
    scores: Mapping[int, NDArray[np.float64]],
    already: NDArray[np.int64],
    budget: Budget,
) -> NDArray[np.int64]:
    """The units that go: those of `already`, and the lowest-scoring others.

    By the id of a bundle, `amounts` are what was asked for, and `shares` what that means for the bundle as it is now.
    """
    gone = set(already.tolist())
    if budget.scope == "global":
        steps = _global_steps(bundles, amounts, shares, scores, gone, budget)
    else:
        steps = {id(bundle): _rounded(bundle, shares[id(bundle)] * bundle.steps, budget) for bundle in bundles}
    dead = [already]
    for bundle in bundles:
        for group in bundle.groups:
            order = _lowest_first(group, scores[group.index], gone)
            dead.append(group.units[order[: bundle.removed(group, steps[id(bundle)])]])
    return np.unique(np.concatenate(dead))


def _rounded(bundle: Bundle, removed: float, budget: Budget, floor: float = 0.0) -> int:
    """Whole steps next to `removed`, so that at least one step stays and the rest is the multiple that is wanted."""
    steps = bundle.steps
    most = steps - max(1, ceil(floor * steps))
    plain = len(bundle.groups) == 1 and not bundle.groups[0].alternatives
    multiple = budget.multiple(bundle.groups[0]) if plain else 1
    if multiple == 1:
        return max(0, min(round(removed), most))
    if steps % multiple and budget.multiple_of is None:
        return max(0, min(round(removed), most))
    kept = multiple * max(1, round((steps - removed) / multiple))
    while kept < steps - most:
        kept += multiple
    return max(0, steps - kept)


def _global_steps(
    bundles: Sequence[Bundle],
    amounts: Mapping[int, float],
    shares: Mapping[int, float],
    scores: Mapping[int, NDArray[np.float64]],
    gone: set[int],
    budget: Budget,
) -> dict[int, int]:
    """The lowest-scoring steps of all bundles with the same amount, ranked together."""
    chosen: dict[int, int] = {}
    for amount in sorted({amounts[id(bundle)] for bundle in bundles}):
        pool = [bundle for bundle in bundles if amounts[id(bundle)] == amount]
        ranked = sorted(
            (score, i, step)
            for i, bundle in enumerate(pool)
            for step, score in enumerate(_step_scores(bundle, scores, gone))
        )
        removed = [0] * len(pool)
        wanted = sum(shares[id(bundle)] * bundle.units for bundle in pool)
        taken = 0.0
        for _, i, _ in ranked:
            bundle = pool[i]
            cost = bundle.units / bundle.steps
            if removed[i] < bundle.steps - max(1, ceil(budget.floor * bundle.steps)) and taken + cost / 2 <= wanted:
                removed[i] += 1
                taken += cost
        for bundle, count in zip(pool, removed, strict=True):
            chosen[id(bundle)] = _rounded(bundle, count, budget, budget.floor)
    return chosen


def _step_scores(bundle: Bundle, scores: Mapping[int, NDArray[np.float64]], gone: set[int]) -> NDArray[np.float64]:
    """The mean score of each step, lowest first, every group relative to its own mean."""
    total = np.zeros(bundle.steps)
    for group in bundle.groups:
        own = scores[group.index]
        mean = own.mean()
        ordered = own[_lowest_first(group, own, gone)] / (mean if mean > 0 else 1.0)
        total += ordered.reshape(bundle.steps, -1).mean(1)
    return total / len(bundle.groups)


def _lowest_first(group: Group, scores: NDArray[np.float64], gone: set[int]) -> NDArray[np.int64]:
    """Positions of units by score; those that are gone come first, so that an amount counts them in."""
    alive = np.asarray([unit not in gone for unit in group.units.tolist()])
    return np.lexsort((np.arange(len(group)), scores, alive))
