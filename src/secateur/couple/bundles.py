"""Bundles: the smallest sets of groups that can be cut together so that every size in Python code still fits.

Most groups are a bundle of their own. Where one number in the code feeds two sizes (`head_dim` is the width of queries
and of values; `reshape(b, n, c)` wants heads × head width to be c again), their groups are tied: cut in the same
proportion, in whole steps. Where no set of groups satisfies the code, the group is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from secateur.couple.constraints import Conflict, System
from secateur.couple.coupling import Reason
from secateur.couple.groups import Group
from secateur.couple.removal import Removal
from secateur.couple.units import Axis, Units

_MOST_GROUPS = 4096


@dataclass(frozen=True, eq=False)
class Bundle:
    """Groups that are cut in the same proportion: of `steps` equal steps, each group loses the same number."""

    groups: tuple[Group, ...]

    @property
    def steps(self) -> int:
        return gcd(*(len(group) for group in self.groups))

    @property
    def units(self) -> int:
        return sum(len(group) for group in self.groups)

    @property
    def most(self) -> int:
        """So many steps may go: a step stays, and what is left of each group is enough."""
        return min(self.steps * (len(group) - group.least) // len(group) for group in self.groups)

    def removed(self, group: Group, steps: int) -> int:
        """How many units of `group` go when the bundle loses `steps` steps."""
        return len(group) * steps // self.steps


def find_bundles(
    units: Units, groups: Sequence[Group], count_axes: Sequence[Axis], system: System
) -> tuple[list[Bundle], list[tuple[Group, Reason]]]:
    """Every group in at most one bundle, in the order of the model's parameters; of groups that are alternatives, one;
    the rest with the reason.

    Heads come before the width of a head, because removing a head removes a whole computation. Otherwise the finer
    division comes first: it meets an amount more closely.
    """
    finder = _Finder(units, groups, count_axes, system)
    order = sorted(groups, key=lambda group: (not (group.is_heads and group.alternatives), -len(group), group.index))
    bundles: list[Bundle] = []
    left_alone: list[tuple[Group, Reason]] = []
    taken: set[int] = set()
    for group in order:
        if group.index in taken or group.alternatives & taken:  # which divide its coordinates another way
            continue
        try:
            bundle = finder.grow(group, taken)
        except Conflict as conflict:
            left_alone.append((group, conflict.constraint.reason))
            continue
        if bundle.most < 1:
            left_alone.append((group, Reason("an operator needs all of its units at once")))
            continue
        bundles.append(bundle)
        taken |= {member.index for member in bundle.groups}
    bundles.sort(key=lambda bundle: min(group.members[0].leaf.index for group in bundle.groups))
    return bundles, left_alone


class _Finder:
    def __init__(self, units: Units, groups: Sequence[Group], count_axes: Sequence[Axis], system: System) -> None:
        self.units = units
        self.groups = groups
        self.count_axes = count_axes
        self.system = system
        self.counted: dict[int, list[Group]] = {}
        for group in groups:
            for count in group.counted_by:
                self.counted.setdefault(count, []).append(group)

    def grow(self, group: Group, taken: Iterable[int]) -> Bundle:
        """Adds groups until the code's sizes fit. Raises the first conflict that no group can settle."""
        chosen = [group]
        refused = set(taken)
        while (conflict := self._conflict(chosen)) is not None:
            if len(chosen) > _MOST_GROUPS:
                raise conflict
            helper = self._helper(chosen, conflict, refused)
            if helper is None:
                raise conflict
            chosen.append(helper)
        return Bundle(tuple(chosen))

    def _helper(self, chosen: Sequence[Group], conflict: Conflict, refused: set[int]) -> Group | None:
        """A group with which the conflicting constraint holds, all cut in the same proportion."""
        present = {group.index for group in chosen}
        for candidate in self._related(conflict):
            if candidate.index in present or candidate.index in refused or candidate.alternatives & present:
                continue
            after = self._conflict([*chosen, candidate])
            if after is None or after.constraint is not conflict.constraint:
                return candidate
        return None

    def _related(self, conflict: Conflict) -> list[Group]:
        """Groups that change the constraint, or another one about the same attributes; heads first."""
        found: dict[int, Group] = {}
        for i in self.system.near(conflict):
            for count in sorted(self.system.counts[i]):
                for group in sorted(self.counted.get(count, ()), key=lambda group: not group.is_heads):
                    found.setdefault(group.index, group)
        return list(found.values())

    def _conflict(self, chosen: Sequence[Group]) -> Conflict | None:
        """Tries the cut of about half of the steps."""
        bundle = Bundle(tuple(chosen))
        steps = bundle.steps
        if steps == 1 and len(chosen) > 1:
            # Nothing in common to cut by: reported as the conflict that made the last group join.
            return self._conflict(chosen[:-1])
        gone = min(max(1, steps // 2), bundle.most) if steps > 1 else 0
        dead = np.concatenate([group.units[: bundle.removed(group, gone)] for group in chosen])
        removal = Removal(self.units, dead)
        changed = sorted(set().union(*(group.counted_by for group in chosen)))
        try:
            self.system.solve(changed, lambda count: removal.count(self.count_axes[count]))
        except Conflict as conflict:
            return conflict
        return None
