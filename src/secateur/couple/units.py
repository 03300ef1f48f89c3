"""Units, the things that can be removed, and the algebra that couples them.

A *unit* is an id. An *axis* of a tensor of length n is an int array of shape [k, n]: coordinate i is alive as long as
all k units in column i are. A plain channel axis has k = 1, a fixed axis (batch, space) k = 0, a merged axis
(heads × head width) k = 2. So concatenation, slicing, indexing, repetition and shuffling of coordinates are just
operations on columns.

Units that must go together are united by union-find. A unit can also be *bound* to a conjunction of others: splitting
a flat axis of H·D units into (H, D) makes each old unit "h and d". Unit 0 is FIXED, and stands for nothing in a column;
a pinned unit counts as FIXED and remembers the reason. The examples of a batch are units as well, pinned from the
start: they stay in the columns, so that it can be told how many of them a computation is for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Axis = NDArray[np.int64]

FIXED = 0
_UNBOUND = -1
_MAX_ROUNDS = 64


def fixed_axis(length: int) -> Axis:
    """An axis of which no coordinate can be removed."""
    return np.empty((0, length), np.int64)


class Units:
    """Union-find over all units, vectorised."""

    def __init__(self) -> None:
        self.count = 1
        self.examples = 0
        """Units 1 to this are the examples of the batch."""
        self.block_starts = [0]
        """The first unit of every allocation: units of one block have one origin."""
        self._parent = np.arange(1, dtype=np.int64)
        self._left = np.full(1, _UNBOUND, np.int64)
        self._right = np.full(1, _UNBOUND, np.int64)
        self._reason = np.zeros(1, np.int64)
        """Why a class is pinned, by its root; 0 for classes that are free."""
        self._resolved: dict[int, tuple[Axis, Axis]] | None = None

    # -- making axes

    def new(self, count: int) -> Ids:
        if self.count + count > len(self._parent):
            old, size = len(self._parent), max(4096, 2 * len(self._parent), self.count + count)
            self._parent = np.concatenate([self._parent, np.arange(old, size, dtype=np.int64)])
            self._left = np.concatenate([self._left, np.full(size - old, _UNBOUND, np.int64)])
            self._right = np.concatenate([self._right, np.full(size - old, _UNBOUND, np.int64)])
            self._reason = np.concatenate([self._reason, np.zeros(size - old, np.int64)])
        ids = np.arange(self.count, self.count + count, dtype=np.int64)
        self.block_starts.append(self.count)
        self.count += count
        return ids

    def fresh(self, length: int) -> Axis:
        """An axis of independent units. An axis of length 1 carries none: it broadcasts, and cannot shrink."""
        return self.new(length)[None] if length > 1 else fixed_axis(length)

    def batch(self, examples: int, reason: int) -> Axis:
        """The axis of the examples; made before all others, so that whatever is united with it has its ids as roots."""
        axis = self.fresh(examples)
        self.examples = axis.size
        self._reason[axis] = reason
        return axis

    # -- reading

    def examples_in(self, axis: Axis) -> Axis:
        """The rows that hold examples, and FIXED where a coordinate belongs to none."""
        if not self.examples or not len(axis):
            return axis[:0]
        roots = self.find(axis)
        rows = np.where(roots <= self.examples, roots, FIXED)
        return rows[rows.any(1)]

    def find(self, ids: Ids) -> Ids:
        """The root of each unit's class."""
        root = self._parent[ids]
        while True:
            above = self._parent[root]
            if not _some(root != above):
                return root
            self._parent[ids] = above  # shorten the way for the next time
            root = self._parent[above]

    def resolve(self, axis: Axis) -> Axis:
        """The same axis in free roots: conjunctions expanded, pinned units gone, none twice in a column."""
        if self._resolved is None:
            return self._resolve(axis)
        if id(axis) not in self._resolved:
            self._resolved[id(axis)] = axis, self._resolve(axis)  # holding the axis keeps its id taken
        return self._resolved[id(axis)][1]

    def settle(self) -> None:
        """Nothing will be coupled any more: from here on, what an axis resolves to is remembered."""
        self._resolved = {}

    def _resolve(self, axis: Axis) -> Axis:
        if len(axis) == 1:  # the common case
            root = self._free_root(axis[0])
            if not _some(self._left[root] != _UNBOUND):
                return root[None] if _some(root) else axis[:0]
        rows: list[Ids] = []
        stack = list(axis[::-1])
        while stack:
            root = self._free_root(stack.pop())
            bound = self._left[root] != _UNBOUND
            if _some(bound):
                stack += [np.where(bound, self._right[root], FIXED), np.where(bound, self._left[root], root)]
            elif _some(root):
                rows.append(root)
        return _packed(rows, axis.shape[1])

    def reasons(self, axis: Axis) -> Ids:
        """For each coordinate the reason for which a unit of it is pinned, 0 where none is."""
        found = np.zeros(axis.shape[1], np.int64)
        stack = list(axis)
        while stack:
            root = self.find(stack.pop())
            found = np.where(found == 0, self._reason[root], found)
            bound = (self._left[root] != _UNBOUND) & (self._reason[root] == 0)
            if _some(bound):
                stack += [np.where(bound, self._left[root], FIXED), np.where(bound, self._right[root], FIXED)]
        return found

    # -- coupling

    def pin(self, axis: Axis, reason: int | Ids) -> None:
        """No coordinate of the axis can be removed any more."""
        resolved = self.resolve(axis)
        for row in resolved:
            reasons = np.broadcast_to(reason, row.shape)
            free = row != FIXED
            self._reason[row[free]] = reasons[free]

    def unify(self, a: Axis, b: Axis, reason: int, misfit: int | None = None) -> Axis:
        """Coordinate i of `a` and of `b` live and die together from now on.

        What meets nothing but fixed coordinates is pinned for `reason`, what fits no other way for `misfit`.
        """
        misfit = reason if misfit is None else misfit
        if a is b:
            return a
        assert a.shape[1] == b.shape[1], (a.shape, b.shape)
        if len(a) == len(b) == 1:  # the common case: free units on both sides
            left, right = self._free_root(a[0]), self._free_root(b[0])
            bound = (self._left[left] != _UNBOUND) | (self._left[right] != _UNBOUND)
            if _every(left) and _every(right) and not _some(bound):
                self._union(left, right)
                return a
        for _ in range(_MAX_ROUNDS):
            left, right = self._differences(a, b)
            no_left, no_right = ~left.any(0), ~right.any(0)
            if (no_left & no_right).all():
                return a
            only_left, only_right = no_right & ~no_left, no_left & ~no_right
            if only_left.any() or only_right.any():  # nothing on one side: the other side has to stay
                self._pin_like(left[:, only_left], b[:, only_left], reason)
                self._pin_like(right[:, only_right], a[:, only_right], reason)
                continue
            both = ~no_left
            self._couple(left[:, both], right[:, both], misfit)
        self.pin(a, misfit)
        self.pin(b, misfit)
        return a

    def _differences(self, a: Axis, b: Axis) -> tuple[Axis, Axis]:
        """Both sides without the units that they share in a column."""
        left, right = self.resolve(a), self.resolve(b)
        if left.shape == right.shape and not _some(left != right):
            return left[:0], right[:0]
        left, right = left.copy(), right.copy()
        for row in left:
            for other in right:
                shared = row == other
                row[shared] = other[shared] = FIXED
        return _packed(left, a.shape[1]), _packed(right, a.shape[1])

    def _pin_like(self, axis: Axis, fixed: Axis, reason: int) -> None:
        if not axis.size:
            return
        examples = self.examples_in(fixed)
        if len(examples) == len(axis) == 1 and _every(examples) and _every(axis):
            self._union(self.find(axis[0]), examples[0])  # pinned as well, and it is known for what
        else:
            inherited = self.reasons(fixed)
            self.pin(axis, np.where(inherited == 0, reason, inherited))

    def _couple(self, a: Axis, b: Axis, reason: int) -> None:
        """One round for columns in which both sides have something left."""
        terms_a, terms_b = (a != FIXED).sum(0), (b != FIXED).sum(0)
        single = (terms_a == 1) & (terms_b == 1)
        if _some(single):
            self._union(a[:, single].max(0), b[:, single].max(0))
        elif _some(terms_a == 1):
            one = terms_a == 1
            self._bind(a[:, one].max(0), b[:, one], reason)
        elif _some(terms_b == 1):
            one = terms_b == 1
            self._bind(b[:, one].max(0), a[:, one], reason)
        elif not self._match(a, b, reason):
            self.pin(a, reason)
            self.pin(b, reason)

    def _free_root(self, ids: Ids) -> Ids:
        root = self.find(ids)
        pinned = self._reason[root]
        return np.where(pinned, FIXED, root) if _some(pinned) else root

    def _union(self, a: Ids, b: Ids) -> None:
        """Unites classes, given by their roots."""
        while True:
            low, high = np.minimum(a, b), np.maximum(a, b)
            self._parent[high] = low  # where one `high` has several, the last wins, and the next round unites the rest
            rest = self._parent[high] != low
            if not _some(rest):
                return
            a, b = self.find(high[rest]), self.find(low[rest])

    def _bind(self, ids: Ids, conjunctions: Axis, reason: int) -> None:
        """Each unit is alive from now on exactly when all units in its column of `conjunctions` are."""
        ids, first = np.unique(ids, return_index=True)
        conjunctions = conjunctions[:, first]
        on_both_sides = np.isin(ids, conjunctions)
        if _some(on_both_sides):
            self.pin(ids[on_both_sides][None], reason)
            self.pin(conjunctions[:, on_both_sides], reason)
            ids, conjunctions = ids[~on_both_sides], conjunctions[:, ~on_both_sides]
            if not len(ids):
                return
        while len(conjunctions) > 2:  # a unit is bound to a pair; more terms nest
            pair = self.new(len(ids))
            self._left[pair], self._right[pair] = conjunctions[-2], conjunctions[-1]
            conjunctions = np.concatenate([conjunctions[:-2], pair[None]])
        self._left[ids], self._right[ids] = conjunctions

    def _match(self, a: Axis, b: Axis, reason: int) -> bool:
        """Pairs rows of two conjunctions: rows that divide the coordinates alike are united; where one row divides
        finer than another (24 × 32 against 12 × 64), the finer is split by the coarser. Rows with gaps
        match nothing."""
        a, b = a[a.all(1)], b[b.all(1)]
        for row in a:
            for other in b:
                if _parts(row, other) == _parts(row) == _parts(other):
                    self._union(row, other)
                    return True
        for coarse_side, fine_side in ((a, b), (b, a)):
            for coarse in coarse_side:
                for fine in fine_side:
                    if _parts(coarse) > 1 and _parts(coarse, fine) == _parts(fine):
                        self._refine(fine, coarse, reason)
                        return True
        return False

    def _refine(self, fine: Ids, coarse: Ids, reason: int) -> None:
        ids, first = np.unique(fine, return_index=True)
        order = np.argsort(coarse[first], kind="stable")
        outer = coarse[first][order]
        starts = np.flatnonzero(np.r_[True, outer[1:] != outer[:-1]])
        inner = np.arange(len(outer)) - np.repeat(starts, np.diff(np.r_[starts, len(outer)]))
        parts = self.new(int(inner.max()) + 1)
        self._bind(ids[order], np.stack([outer, parts[inner]]), reason)


def _packed(rows: Iterable[Ids], length: int) -> Axis:
    """The rows as an axis with as few rows as the fullest column needs, no unit twice in a column."""
    packed: list[Ids] = []
    for row in rows:
        row = row.copy()
        for earlier in packed:
            row[row == earlier] = FIXED
        if not _some(row):
            continue
        for earlier in packed:
            if not _some((earlier != FIXED) & (row != FIXED)):
                earlier += row
                break
        else:
            packed.append(row)
    return np.stack(packed) if packed else fixed_axis(length)


def _some(numbers: NDArray[Any]) -> bool:
    """As `any`, which takes four times as long for so few."""
    return bool(np.count_nonzero(numbers))


def _every(numbers: NDArray[Any]) -> bool:
    return bool(np.count_nonzero(numbers) == numbers.size)


def _parts(*rows: Ids) -> int:
    """Into how many parts the rows together divide the coordinates."""
    if len(rows) == 1:
        return len(np.unique(rows[0]))
    return len(np.unique(rows[0] * (int(rows[1].max()) + 1) + rows[1]))
