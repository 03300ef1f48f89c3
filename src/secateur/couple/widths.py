"""How long an axis is once a share of each group is gone, without deciding yet which units go.

Every unit of a group occurs equally often along an axis, so its length depends on counts alone: an axis of heads × head
width with 3/4 of the heads and half of the width left has 3/8 of its length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secateur.couple.units import Axis, Units

Shares = Mapping[int, float]
"""By the index of a group, the share of its units that is left; groups that are not listed are whole."""


@dataclass(frozen=True)
class Need:
    """That a coordinate needs a unit of a group; where it needs several of them, `before` others are alive already."""

    group: int
    size: int
    before: int

    def met(self, share: float) -> float:
        return share if self.before == 0 else (share * self.size - self.before) / (self.size - self.before)


@dataclass(frozen=True)
class Width:
    """Parts of an axis: so many coordinates, and what each of them needs."""

    parts: tuple[tuple[int, tuple[Need, ...]], ...]

    def at(self, shares: Shares) -> int:
        length = 0.0
        for coordinates, needs in self.parts:
            left = float(coordinates)
            for need in needs:
                left *= need.met(shares.get(need.group, 1.0))
            length += left
        return round(length)

    @property
    def groups(self) -> frozenset[int]:
        return frozenset(need.group for _, needs in self.parts for need in needs)


class Widths:
    """The widths of axes; each axis is looked at once."""

    def __init__(self, units: Units, group_of: NDArray[np.int64]) -> None:
        self._units = units
        self._group_of = group_of
        self._sizes = np.bincount(group_of[group_of >= 0]).tolist()
        self._known: dict[int, tuple[Axis, Width]] = {}

    def __call__(self, axis: Axis) -> Width:
        known = self._known.get(id(axis))
        if known is None:
            known = axis, self._width(axis)  # holding the axis keeps its id taken
            self._known[id(axis)] = known
        return known[1]

    def _width(self, axis: Axis) -> Width:
        resolved = self._units.resolve(axis)
        if not len(resolved):
            return Width(((int(axis.shape[1]), ()),))
        groups = self._group_of[resolved]
        first = groups[:, :1]
        if (groups == first).all():  # most axes belong to one group, or to none
            return Width(((groups.shape[1], self._needs(first[:, 0].tolist())),))
        kinds, counts = np.unique(groups, axis=1, return_counts=True)
        return Width(
            tuple((count, self._needs(kind)) for kind, count in zip(kinds.T.tolist(), counts.tolist(), strict=True))
        )

    def _needs(self, groups: Sequence[int]) -> tuple[Need, ...]:
        """Of different units: one that fills several rows of a column was packed into one."""
        return tuple(
            Need(group, self._sizes[group], groups[:i].count(group)) for i, group in enumerate(groups) if group >= 0
        )
