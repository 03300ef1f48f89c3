"""Groups: units that occur in the same places of the same parameters, and so are candidates for the same cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secateur.capture.trace import Value
from secateur.couple.coupling import Coupling
from secateur.couple.units import FIXED, Axis

__all__ = ["Group", "Member", "find_groups"]


@dataclass(frozen=True, eq=False)
class Member:
    """An axis of a parameter or buffer that loses `coordinates` coordinates with each unit of the group."""

    leaf: Value
    axis: int
    coordinates: int


@dataclass(frozen=True, eq=False)
class Group:
    """Units of which any subset may be removed, as far as the operators are concerned."""

    index: int
    units: NDArray[np.int64]
    members: tuple[Member, ...]
    counted_by: frozenset[int]
    """The axes, by number, whose lengths Python code knows and that shrink with the group."""
    reads: int
    alternatives: frozenset[int]
    """Groups that divide the same coordinates another way, such as heads and the width of a head: cut one of them."""

    def __len__(self) -> int:
        return len(self.units)

    def is_heads(self) -> bool:
        return bool(self.reads & Coupling.HEADS)


def find_groups(coupling: Coupling, count_axes: Sequence[Axis]) -> list[Group]:
    """The free units, gathered by origin and by the axes that they occur in."""
    units = coupling.units
    leaves = [leaf for leaf in coupling.trace.leaves if leaf.kind in ("parameter", "buffer") and leaf.floating]
    places = [(leaf, d) for leaf in leaves for d in range(len(leaf.shape))]
    resolved = [units.resolve(coupling.axes(leaf)[d]) for leaf, d in places]
    resolved += [units.resolve(axis) for axis in count_axes]
    by_unit = _occurrences(resolved)
    reads = np.zeros(units.count, np.int64)
    for kind, axis in coupling.reads:
        for row in units.resolve(axis):
            reads[row] |= kind
    origin = np.searchsorted(np.asarray(units.block_starts), by_unit.units, "right")
    families: dict[tuple[int, bytes], list[int]] = {}
    for i, (unit, block) in enumerate(zip(by_unit.units.tolist(), origin.tolist(), strict=True)):
        # A unit that nothing reads in this pass, such as a position beyond the example's length, is not dead weight.
        if reads[unit]:
            families.setdefault((block, by_unit.signature(i)), []).append(i)
    found: list[tuple[NDArray[np.int64], tuple[Member, ...], frozenset[int]]] = []
    for (_, signature), positions in families.items():
        pairs = np.frombuffer(signature, np.int64).reshape(-1, 2).tolist()
        members = tuple(Member(*places[place], times) for place, times in pairs if place < len(places))
        counted = frozenset(place - len(places) for place, _ in pairs if place >= len(places))
        if any(member.leaf.kind == "parameter" for member in members):
            found.append((by_unit.units[positions], members, counted))
    group_of = np.full(units.count, -1, np.int64)
    for index, (own, _, _) in enumerate(found):
        group_of[own] = index
    alternatives = _alternatives(resolved[: len(places)], group_of, len(found))
    return [
        Group(i, own, members, counted, int(np.bitwise_or.reduce(reads[own])), frozenset(alternatives[i]))
        for i, (own, members, counted) in enumerate(found)
    ]


class _occurrences:  # noqa: N801 - a table, used like a function
    """For every unit the axes that it occurs in, and how often."""

    def __init__(self, resolved: Sequence[Axis]) -> None:
        units, axes, times = [], [], []
        for place, rows in enumerate(resolved):
            if rows.size:
                ids, counts = np.unique(rows[rows != FIXED], return_counts=True)
                units.append(ids)
                axes.append(np.full(len(ids), place))
                times.append(counts)
        empty = np.empty(0, np.int64)
        all_units = np.concatenate([empty, *units])
        pairs = np.stack([np.concatenate([empty, *axes]), np.concatenate([empty, *times])], axis=1)
        order = np.argsort(all_units, kind="stable")
        self.units, starts = np.unique(all_units[order], return_index=True)
        self._pairs = np.ascontiguousarray(pairs[order])
        self._bounds = np.r_[starts, len(all_units)]

    def signature(self, i: int) -> bytes:
        return self._pairs[self._bounds[i] : self._bounds[i + 1]].tobytes()


def _alternatives(resolved: Sequence[Axis], group_of: NDArray[np.int64], count: int) -> list[set[int]]:
    """Groups that meet in one coordinate of a parameter."""
    found: list[set[int]] = [set() for _ in range(count)]
    for axis in resolved:
        if len(axis) < 2:
            continue
        for column in np.unique(group_of[axis], axis=1).T:
            groups = {int(group) for group in column if group >= 0}
            for group in groups:
                found[group] |= groups - {group}
    return found
