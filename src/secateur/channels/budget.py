"""How many units of each bundle go, and which: the amount, met as closely as whole steps and rounding allow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from secateur.channels.rounding import Alignment
from secateur.couple import Bundle, Group, Ids

ScoresByGroup = Mapping[int, NDArray[np.float64]]
"""By the index of a group, one number for each of its units."""
NO_UNITS: Ids = np.empty(0, np.int64)

# A search may choose any width, so it need not take one that is sure to be slow, unless nothing else fits.
_SEARCH_STEP = 4
_FINEST = 4


@dataclass(frozen=True)
class Budget:
    """How amounts are turned into counts."""

    scope: str
    alignment: Alignment
    floor: float

    def multiple(self, bundle: Bundle) -> int:
        """What the steps that stay have to be a multiple of. Tied or further divided groups are not rounded."""
        return self.alignment.multiple(bundle.groups[0]) if _is_plain(bundle) else 1

    def most(self, bundle: Bundle, floor: float | None = None) -> int:
        """So many steps may go."""
        share = self.floor if floor is None else floor
        return min(bundle.most, bundle.steps - ceil(share * bundle.steps))

    def finer(self) -> Budget | None:
        """With steps half as large; None where they are the user's own, or so small that kernels would not like it."""
        fineness = 2 * self.alignment.fineness
        if self.alignment.asked or fineness > _FINEST:
            return None
        return replace(self, alignment=replace(self.alignment, fineness=fineness))

    def rounding(self, bundles: Iterable[Bundle], shares: Mapping[int, float]) -> str | None:
        """How the study of the machine rounded what is left of the bundles, for the plan to say."""
        cut = [(b, shares[b.groups[0].index]) for b in bundles if _is_plain(b) and b.groups[0].index in shares]
        return self.alignment.told(b.groups[0] for b, left in cut if round(left * b.steps) % self.multiple(b) == 0)


def _is_plain(bundle: Bundle) -> bool:
    """Whether a unit is a channel, and so rounding pays."""
    return len(bundle.groups) == 1 and not bundle.groups[0].alternatives and not bundle.groups[0].is_experts


def choose_steps(
    amounts: Mapping[Bundle, float], shares: Mapping[Bundle, float], scores: ScoresByGroup, gone: Ids, budget: Budget
) -> dict[Bundle, int]:
    """How many steps each bundle loses in all: `amounts` are what was asked for, and `shares` what that means for the
    bundle as it is now. With scope "global", the steps of all bundles with the same amount are ranked together."""
    if budget.scope == "layer":
        return {bundle: steps_for(bundle, share, budget) for bundle, share in shares.items()}
    known, chosen = set(gone.tolist()), {}
    for amount in sorted(set(amounts.values())):
        pool = [bundle for bundle in shares if amounts[bundle] == amount]
        ranked = sorted(
            (score, i, step)
            for i, bundle in enumerate(pool)
            for step, score in enumerate(_step_scores(bundle, scores, known))
        )
        removed = [0] * len(pool)
        wanted = sum(shares[bundle] * bundle.units for bundle in pool)
        taken = 0.0
        for _, i, _ in ranked:
            bundle = pool[i]
            cost = bundle.units / bundle.steps
            if removed[i] < budget.most(bundle) and taken + cost / 2 <= wanted:
                removed[i] += 1
                taken += cost
        for bundle, count in zip(pool, removed, strict=True):
            chosen[bundle] = _rounded(bundle, count, budget, budget.floor)
    return chosen


def lowest_units(steps: Mapping[Bundle, int], scores: ScoresByGroup, gone: Ids = NO_UNITS) -> Ids:
    """The units that go when each bundle loses so many steps: those that are gone, and the lowest-scoring others."""
    known, dead = set(gone.tolist()), [gone]
    for bundle, lost in steps.items():
        for group in bundle.groups:
            order = lowest_first(group, scores[group.index], known)
            dead.append(group.units[order[: bundle.removed(group, lost)]])
    return np.unique(np.concatenate(dead))


def allowed_steps(bundle: Bundle, budget: Budget) -> list[int]:
    """The numbers of steps that a bundle may lose, beginning with none: what stays is aligned and above the floor."""
    multiple = budget.multiple(bundle)
    if not budget.alignment.asked and bundle.steps >= 4 * _SEARCH_STEP:
        multiple = max(multiple, _SEARCH_STEP // budget.alignment.fineness)
    least = bundle.steps - budget.most(bundle)
    kept = range((bundle.steps - 1) // multiple * multiple, 0, -multiple)
    return [0, *(bundle.steps - left for left in kept if left >= least)]


def steps_for(bundle: Bundle, amount: float, budget: Budget) -> int:
    return _rounded(bundle, amount * bundle.steps, budget)


def _rounded(bundle: Bundle, removed: float, budget: Budget, floor: float = 0.0) -> int:
    """Whole steps next to `removed`, so that at least one step stays and the rest is the multiple that is wanted."""
    steps = bundle.steps
    most = budget.most(bundle, floor)
    multiple = budget.multiple(bundle)
    if multiple == 1 or (removed < 0.5 and not budget.alignment.asked):
        return max(0, min(round(removed), most))
    kept = multiple * max(1, round((steps - removed) / multiple))
    while kept < steps - most:
        kept += multiple
    return max(0, steps - kept)


def _step_scores(bundle: Bundle, scores: ScoresByGroup, gone: set[int]) -> NDArray[np.float64]:
    """The mean score of each step, lowest first, every group relative to its own mean."""
    total = np.zeros(bundle.steps)
    for group in bundle.groups:
        own = scores[group.index]
        mean = own.mean()
        ordered = own[lowest_first(group, own, gone)] / (mean if mean > 0 else 1.0)
        total += ordered.reshape(bundle.steps, -1).mean(1)
    return total / len(bundle.groups)


def lowest_first(group: Group, scores: NDArray[np.float64], gone: set[int]) -> Ids:
    """Positions of units by score; those that are gone come first, so that an amount counts them in."""
    alive = np.asarray([unit not in gone for unit in group.units.tolist()])
    return np.lexsort((np.arange(len(group)), scores, alive))
