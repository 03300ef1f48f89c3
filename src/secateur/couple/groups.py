"""Groups: units that occur in the same places of the same parameters, and so are candidates for the same cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secateur.capture import Value
from secateur.couple.coupling import Coupling
from secateur.couple.units import FIXED, Axis, Units


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
    is_heads: bool
    is_experts: bool
    least: int
    """So many units have to stay, because an operator chooses as many."""
    alternatives: frozenset[int]
    """Groups that divide the same coordinates another way, such as heads and the width of a head: cut one of them."""

    def __len__(self) -> int:
        return len(self.units)

    def sum_by_unit(self, resolved: Axis, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers for the coordinates of an axis, added up for each unit of the group."""
        order = np.argsort(self.units)
        total = np.zeros(len(self))
        for row in resolved:
            position = order[np.searchsorted(self.units, row, sorter=order).clip(max=len(order) - 1)]
            mine = self.units[position] == row
            np.add.at(total, position[mine], numbers[mine])
        return total


def find_groups(coupling: Coupling, count_axes: Sequence[Axis]) -> list[Group]:
    """The free units, gathered by origin and by the axes that they occur in."""
    units = coupling.units
    leaves = [leaf for leaf in coupling.trace.leaves if leaf.kind in ("parameter", "buffer") and leaf.floating]
    places = [(leaf, d) for leaf in leaves for d in range(len(leaf.shape))]
    resolved = [units.resolve(coupling.axes(leaf)[d]) for leaf, d in places]
    resolved += [units.resolve(axis) for axis in count_axes]
    heads = _occurring(units, coupling.heads)
    read = _occurring(units, coupling.reads) | heads
    found: list[tuple[NDArray[np.int64], tuple[Member, ...], frozenset[int]]] = []
    for own, pairs in _families(resolved, units.block_starts, units.count):
        # A unit that nothing reads in this pass, such as a position beyond the example's length, is not dead weight.
        own = own[read[own]]
        members = tuple(Member(*places[place], times) for place, times in pairs if place < len(places))
        counted = frozenset(place - len(places) for place, _ in pairs if place >= len(places))
        if len(own) and any(member.leaf.kind == "parameter" for member in members):
            found.append((own, members, counted))
    group_of = np.full(units.count, -1, np.int64)
    for index, (own, _, _) in enumerate(found):
        group_of[own] = index
    alternatives = _alternatives(resolved[: len(places)], group_of, len(found))
    experts, least = _occurring(units, coupling.experts), _least(coupling, group_of)
    return [
        Group(
            i,
            own,
            members,
            counted,
            bool(heads[own].any()),
            bool(experts[own].any()),
            least.get(i, 1),
            frozenset(alternatives[i]),
        )
        for i, (own, members, counted) in enumerate(found)
    ]


def _least(coupling: Coupling, group_of: NDArray[np.int64]) -> dict[int, int]:
    """By the index of a group, how many units must be left for operators that choose some of them, all other groups
    being whole."""
    least: dict[int, int] = {}
    for choice in coupling.choices:
        groups = group_of[coupling.units.resolve(choice.axis)]
        for group in np.unique(groups[groups >= 0]).tolist():
            others = int((groups != group).all(0).sum())
            least[group] = max(least.get(group, 1), choice.count - others)
    return least


def _occurring(units: Units, axes: Sequence[Axis]) -> NDArray[np.bool_]:
    """Which units occur in any of the axes."""
    occurs = np.zeros(units.count, bool)
    for axis in axes:
        occurs[units.resolve(axis)] = True
    return occurs


def _families(
    resolved: Sequence[Axis], block_starts: Sequence[int], count: int
) -> Iterator[tuple[NDArray[np.int64], list[tuple[int, int]]]]:
    """Units of one origin that occur in the same axes, equally often, with those axes and how often.

    All units of one origin begin as one family; every axis splits the families that it meets.
    """
    family = np.searchsorted(np.asarray(block_starts), np.arange(count), "right")
    families = len(block_starts) + 1
    occurs = np.zeros(count, bool)
    places: list[tuple[list[int], NDArray[np.int64], NDArray[np.int64]]] = []
    for alike in _alike(resolved):
        ids, times = _tally(resolved[alike[0]])
        _, new = np.unique(family[ids] * (times.max() + 1) + times, return_inverse=True)
        family[ids] = families + new
        families += int(new.max()) + 1
        occurs[ids] = True
        places.append((alike, ids, times))
    members = np.flatnonzero(occurs)
    order = members[np.argsort(family[members], kind="stable")]
    groups = np.split(order, np.flatnonzero(np.diff(family[order])) + 1) if len(order) else []
    number = {int(own[0]): i for i, own in enumerate(groups)}
    pairs: list[list[tuple[int, int]]] = [[] for _ in groups]
    first = np.asarray(sorted(number), np.int64)
    for alike, ids, times in places:
        # The first unit of a family stands for all of it.
        here = np.flatnonzero(np.isin(ids, first, assume_unique=True))
        for unit, often in zip(ids[here].tolist(), times[here].tolist(), strict=True):
            pairs[number[unit]] += [(place, often) for place in alike]
    for i in sorted(range(len(groups)), key=lambda i: int(groups[i][0])):
        yield groups[i], sorted(pairs[i])


def _alike(resolved: Sequence[Axis]) -> list[list[int]]:
    """The numbers of axes, those of the same units together: a convolution, its norm and all the norm's buffers."""
    found: dict[tuple[tuple[int, ...], bytes], list[int]] = {}
    for place, rows in enumerate(resolved):
        if rows.size:
            found.setdefault((rows.shape, rows.tobytes()), []).append(place)
    return list(found.values())


def _tally(rows: Axis) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The units of an axis, in order, and how often each occurs."""
    ids = rows[rows != FIXED]
    if len(rows) == 1 and (np.diff(ids) > 0).all():  # a plain axis, in order already
        return ids, np.ones(len(ids), np.int64)
    ids, times = np.unique(ids, return_counts=True)
    return ids, times


def _alternatives(resolved: Sequence[Axis], group_of: NDArray[np.int64], count: int) -> list[set[int]]:
    """Groups that meet in one coordinate of a parameter."""
    found: list[set[int]] = [set() for _ in range(count)]
    several = [axis for axis in resolved if len(axis) > 1]
    for alike in _alike(several):
        axis = several[alike[0]]
        for column in set(zip(*group_of[axis].tolist(), strict=True)):
            groups = {group for group in column if group >= 0}
            for group in groups:
                found[group] |= groups - {group}
    return found
