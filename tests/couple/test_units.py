"""The algebra of units against a model that knows only what it promises: which coordinates are alive together.

Random programs build axes and couple them. Each operation is written down as a statement about living coordinates, in
terms of plain booleans, and all statements have to hold whichever free units die.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from secateur.couple.axes import concatenate, merge, reshape, split
from secateur.couple.removal import Removal
from secateur.couple.units import FIXED, Axis, Units, fixed_axis

Flags = NDArray[np.bool_]
Alive = Callable[[Axis], Flags]
Statement = Callable[[Alive], bool]

REASON = 7
MOST_ENUMERATED = 6
SAMPLES = 24


def outer_and(flags: Sequence[Flags]) -> Flags:
    """Coordinate (i, j, …) of a product is alive where coordinate i of the first is, and j of the second."""
    product = np.ones((), bool)
    for each in flags:
        product = product[..., None] & each
    return product


def free_units(units: Units, axes: Sequence[Axis]) -> list[int]:
    """The roots that a plan may choose from."""
    found = {int(unit) for axis in axes for unit in units.resolve(axis).ravel()}
    return sorted(found - {FIXED})


def fates(units: Units, axes: Sequence[Axis], seed: int = 0) -> Iterator[Alive]:
    """Every choice of dead units, or a sample where there are too many: none, each alone, and random ones."""
    free = np.asarray(free_units(units, axes), np.int64)
    if len(free) <= MOST_ENUMERATED:
        choices = [np.asarray(choice, bool) for choice in itertools.product([False, True], repeat=len(free))]
    else:
        generator = np.random.default_rng(seed)
        choices = [np.zeros(len(free), bool), *np.eye(len(free), dtype=bool)]
        choices += [generator.random(len(free)) < generator.random() for _ in range(SAMPLES)]
    for choice in choices:
        yield Removal(units, free[choice]).alive


@dataclass
class World:
    """The axes of a program, and what must be true of them."""

    units: Units = field(default_factory=Units)
    axes: list[Axis] = field(default_factory=list)
    statements: list[tuple[str, Statement]] = field(default_factory=list)

    def add(self, axis: Axis) -> Axis:
        self.axes.append(axis)
        return axis

    def state(self, text: str, statement: Statement) -> None:
        self.statements.append((text, statement))

    # -- operations; each states what it promises

    def fresh(self, length: int) -> Axis:
        return self.add(self.units.fresh(length))

    def fixed(self, length: int) -> Axis:
        axis = self.add(fixed_axis(length))
        self.state(f"fixed({length})", lambda alive: bool(alive(axis).all()))
        return axis

    def unify(self, a: Axis, b: Axis) -> None:
        self.units.unify(a, b, REASON)
        self.state("unify", lambda alive: np.array_equal(alive(a), alive(b)))

    def pin(self, axis: Axis) -> None:
        self.units.pin(axis, REASON)
        self.state("pin", lambda alive: bool(alive(axis).all()))

    def columns(self, a: Axis, positions: Sequence[int]) -> Axis:
        taken = self.add(a[:, list(positions)])
        self.state(f"columns {positions}", lambda alive: np.array_equal(alive(taken), alive(a)[list(positions)]))
        return taken

    def concatenate(self, parts: Sequence[Axis]) -> Axis:
        whole = self.add(concatenate(parts))
        self.state("cat", lambda alive: np.array_equal(alive(whole), np.concatenate([alive(part) for part in parts])))
        return whole

    def merge(self, parts: Sequence[Axis]) -> Axis:
        merged = self.add(merge(parts))
        self.state(
            "merge", lambda alive: np.array_equal(alive(merged), outer_and([alive(part) for part in parts]).ravel())
        )
        return merged

    def split(self, axis: Axis, sizes: Sequence[int]) -> list[Axis]:
        parts = [self.add(part) for part in split(self.units, axis, sizes, REASON)]
        assert [part.shape[1] for part in parts] == list(sizes)
        self.state(
            f"split {sizes}",
            lambda alive: np.array_equal(alive(axis), outer_and([alive(part) for part in parts]).ravel()),
        )
        again = merge(parts)
        self.state(f"merge(split {sizes})", lambda alive: np.array_equal(alive(axis), alive(again)))
        return parts

    def reshape(self, axes: Sequence[Axis], new: Sequence[int]) -> list[Axis]:
        old = [axis.shape[1] for axis in axes]
        made = [self.add(axis) for axis in reshape(self.units, axes, old, new, REASON)]
        assert [axis.shape[1] for axis in made] == list(new)
        self.state(
            f"reshape {old} → {new}",
            lambda alive: np.array_equal(
                outer_and([alive(axis) for axis in axes]).ravel(), outer_and([alive(axis) for axis in made]).ravel()
            ),
        )
        return made

    # -- what has to hold in the end

    def check(self) -> None:
        for alive in fates(self.units, self.axes):
            for text, statement in self.statements:
                assert statement(alive), (text, [alive(axis).astype(int).tolist() for axis in self.axes])
        for axis in self.axes:
            resolved = self.units.resolve(axis)
            assert np.array_equal(self.units.resolve(resolved), resolved)
            for column, roots in zip(axis.T, resolved.T, strict=True):
                terms = roots[roots != FIXED]
                assert len(set(terms.tolist())) == len(terms), "a unit twice in one column"
                if (column != FIXED).any() and not len(terms):
                    assert self.units.reasons(column[:, None])[0] != 0, "fixed, and nobody knows why"


LENGTHS = (1, 2, 3, 4, 6, 8, 12)
FACTORS = {
    n: [f for size in (2, 3) for f in itertools.product((1, 2, 3, 4, 6), repeat=size) if prod(f) == n] for n in LENGTHS
}
Step = tuple[str, int, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["fresh", "fixed", "pin column", "columns", "permute", "cat", "reshape", "interleave"]
            + 3 * ["unify"]
            + 2 * ["merge", "split"]
        ),
        *[st.integers(0, 1 << 16)] * 3,
    ),
    min_size=3,
    max_size=14,
)


def run(steps: Sequence[Step]) -> World:
    """Interprets random numbers as a program; what they choose from is what there is at that point."""
    world = World()
    for length in (4, 6, 12):
        world.fresh(length)
    for step in steps:
        perform(world, step)
    return world


def perform(world: World, step: Step) -> None:
    operation, i, j, k = step
    axis, other = world.axes[i % len(world.axes)], world.axes[j % len(world.axes)]
    n = axis.shape[1]
    alike = [each for each in world.axes if each.shape[1] == n]
    match operation:
        case "fresh":
            world.fresh(LENGTHS[i % len(LENGTHS)])
        case "fixed":
            world.fixed(LENGTHS[i % len(LENGTHS)])
        case "unify":
            world.unify(axis, alike[j % len(alike)])
        case "pin column":
            world.pin(axis[:, [j % n]])
        case "columns" if n > 2:  # rules give no units to an axis of length 1, which would broadcast
            start = j % (n - 1)
            world.columns(axis, range(start, start + 2 + k % (n - start - 1)))
        case "permute":
            world.columns(axis, np.random.default_rng(k).permutation(n).tolist())
        case "cat" if n + other.shape[1] in LENGTHS:
            world.concatenate([axis, other])
        case "merge" if n * other.shape[1] in LENGTHS:
            world.merge([axis, other])
        case "split" if n in FACTORS:
            world.split(axis, FACTORS[n][j % len(FACTORS[n])])
        case "reshape" if n * other.shape[1] in LENGTHS:
            new = FACTORS[n * other.shape[1]]
            world.reshape([axis, other], new[k % len(new)])
        case "interleave" if n % 2 == 0:  # as a rotation swaps halves
            world.columns(axis, np.arange(n).reshape(2, -1)[::-1].ravel().tolist())


@settings(max_examples=300)
@given(STEPS)
def test_every_promise_of_a_random_program_is_kept_whichever_units_die(steps: list[Step]) -> None:
    run(steps).check()


# -- nothing is kept that could go


def possible(units: Units, axis: Axis) -> set[tuple[bool, ...]]:
    """Every pattern of living coordinates that the units allow."""
    return {tuple(alive(axis).tolist()) for alive in fates(units, [axis])}


Equality = tuple[int, int, int]
EQUALITIES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 119)), max_size=5)


@given(EQUALITIES, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=2))
def test_plain_equalities_and_pins_allow_exactly_what_they_must(
    equalities: list[Equality], pins: list[tuple[int, int]]
) -> None:
    """Four axes of five: the classes are those of an equivalence relation computed by brute force."""
    units = Units()
    axes = [units.fresh(5) for _ in range(4)]
    permutations = list(itertools.permutations(range(5)))
    class_of = {(a, i): (a, i) for a in range(4) for i in range(5)}

    def unite(one: tuple[int, int], other: tuple[int, int]) -> None:
        old, new = class_of[one], class_of[other]
        class_of.update({place: new for place, root in class_of.items() if root == old})

    for a, b, which in equalities:
        order = list(permutations[which])
        units.unify(axes[a][:, order], axes[b], REASON)
        for i in range(5):
            unite((a, order[i]), (b, i))
    for a, i in pins:
        units.pin(axes[a][:, [i]], REASON)
    pinned = {class_of[place] for place in pins}
    expected = {
        frozenset(p for p, root in class_of.items() if root == each) for each in set(class_of.values()) - pinned
    }
    free = np.asarray(free_units(units, axes), np.int64)
    found = set()
    for unit in free:
        alive = Removal(units, unit[None]).alive
        found.add(frozenset((a, i) for a, axis in enumerate(axes) for i in range(5) if not alive(axis)[i]))
    assert found == expected


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_splitting_a_fresh_axis_leaves_every_factor_free(sizes: list[int]) -> None:
    units = Units()
    parts = split(units, units.fresh(prod(sizes)), sizes, REASON)
    assert len(free_units(units, parts)) == sum(n for n in sizes if n > 1)
    assert not units.reasons(merge(parts)).any()


def test_a_merged_axis_splits_back_into_what_it_was_merged_from() -> None:
    units = Units()
    heads, width = units.fresh(4), units.fresh(6)
    again = split(units, merge([heads, width]), (4, 6), REASON)
    assert np.array_equal(again[0], heads)
    assert np.array_equal(again[1], width)


def test_a_reshape_that_only_moves_ones_changes_no_axis() -> None:
    units = Units()
    a, b = units.fresh(3), units.fresh(5)
    one, first, _, second = reshape(units, [a, fixed_axis(1), b], (3, 1, 5), (1, 3, 1, 5), REASON)
    assert one.shape == (0, 1)
    assert np.array_equal(first, a)
    assert np.array_equal(second, b)


# -- the known hard ones


def test_24_heads_of_32_against_12_of_64_meet_in_12_pairs_of_32() -> None:
    world = World()
    many, few = world.merge([world.fresh(24), world.fresh(32)]), world.merge([world.fresh(12), world.fresh(64)])
    world.unify(many, few)
    world.check()
    free = free_units(world.units, world.axes)
    assert len(free) == 12 + 2 + 32
    gone = sorted(int((~Removal(world.units, np.asarray([unit])).alive(many)).sum()) for unit in free)
    assert gone == [24] * 32 + [64] * 12 + [384] * 2
    assert not world.units.reasons(many).any()


def test_divisions_without_a_common_one_are_pinned_with_the_reason() -> None:
    world = World()
    a = world.merge([world.fresh(2), world.fresh(3)])
    b = world.merge([world.fresh(3), world.fresh(2)])
    world.unify(a, b)
    world.check()
    assert free_units(world.units, world.axes) == []
    assert set(world.units.reasons(a)) == {REASON}


@pytest.mark.parametrize("other", ["fresh", "square", "swapped"])
def test_a_conjunction_with_itself(other: str) -> None:
    """As a bilinear form of x with x makes it: coordinate (i, i) needs one unit only, (i, j) the same as (j, i)."""
    world = World()
    a = world.fresh(4)
    square = world.merge([a, a])
    b = world.fresh(4)
    against = {"fresh": world.fresh(16), "square": world.merge([b, b]), "swapped": world.merge([b, a])}[other]
    world.unify(square, against)
    world.check()
    if other != "swapped":  # which is kept whole, though it need not be
        assert possible(world.units, a) == set(itertools.product([False, True], repeat=4))


def test_a_unit_bound_to_itself_is_no_endless_loop() -> None:
    world = World()
    flat = world.fresh(4)
    outer, inner = world.split(flat, (2, 2))
    world.unify(outer, world.columns(flat, [0, 1]))
    world.unify(inner, world.columns(flat, [2, 3]))
    world.check()


def test_units_bound_to_each_other_in_one_step_are_no_endless_loop() -> None:
    world = World()
    a, b = world.fresh(4), world.fresh(4)
    world.unify(world.concatenate([a, b]), world.concatenate([world.merge([b[:, :2], a[:, 2:]])] * 2))
    world.check()


def test_a_partly_pinned_axis_can_be_split() -> None:
    """Pinned coordinate (0, 1) keeps row 0 and column 1; the other row and columns stay free."""
    world = World()
    axis = world.fresh(6)
    world.pin(axis[:, [1]])
    rows, columns = world.split(axis, (2, 3))
    world.check()
    assert possible(world.units, rows) == {(True, True), (True, False)}
    assert possible(world.units, columns) == {(i, True, j) for i in (False, True) for j in (False, True)}


def test_pinning_one_coordinate_of_a_split_axis_keeps_its_row_and_column() -> None:
    world = World()
    axis = world.fresh(6)
    rows, columns = world.split(axis, (2, 3))
    world.pin(axis[:, [1]])
    world.check()
    assert world.units.reasons(rows).tolist() == [REASON, 0]
    assert world.units.reasons(columns).tolist() == [0, REASON, 0]
    assert world.units.reasons(axis).tolist() == [REASON, REASON, REASON, 0, REASON, 0]


def test_pinned_and_free_coordinates_side_by_side() -> None:
    world = World()
    free, pinned, never = world.fresh(3), world.fresh(3), world.fixed(2)
    world.pin(pinned)
    whole, other = world.concatenate([free, pinned, never]), world.fresh(8)
    world.unify(whole, other)
    world.check()
    assert possible(world.units, other) == {
        (*head, True, True, True, True, True) for head in itertools.product([False, True], repeat=3)
    }
    assert world.units.reasons(other).tolist() == [0, 0, 0, REASON, REASON, REASON, REASON, REASON]


def test_a_pin_hands_its_own_reason_on() -> None:
    units = Units()
    a, b = units.fresh(3), units.fresh(3)
    units.pin(a[:, [1]], 5)
    units.unify(a, b, 9)
    assert units.reasons(b).tolist() == [0, 5, 0]
    c = units.fresh(3)
    units.unify(c, fixed_axis(3), 9)
    assert units.reasons(c).tolist() == [9, 9, 9]


def test_merged_axes_of_one_and_two_terms_side_by_side_couple() -> None:
    world = World()
    whole = world.concatenate([world.fresh(2), world.merge([world.fresh(2), world.fresh(3)])])
    other = world.fresh(8)
    world.unify(other, whole)
    world.check()
    assert len(free_units(world.units, [other])) == 2 + 2 + 3


def two_and_three_terms(inner: int) -> tuple[World, Axis]:
    """An axis whose first third needs two units a coordinate and whose rest needs three, the third unit outermost."""
    world = World()
    two = world.merge([world.fresh(2), world.fresh(inner)])
    three = world.merge([world.fresh(2), world.fresh(2), world.fresh(inner)])
    outermost = np.arange(4 * inner).reshape(2, 2, inner).transpose(2, 0, 1).ravel()
    return world, world.concatenate([two, world.columns(three, outermost.tolist())])


def test_rows_with_gaps_are_not_united_with_whole_ones() -> None:
    world, mixed = two_and_three_terms(2)
    world.unify(mixed, world.merge([world.fresh(3), world.fresh(4)]))
    world.check()


def test_rows_with_gaps_are_not_refined() -> None:
    world, mixed = two_and_three_terms(4)
    world.unify(mixed, world.merge([world.fresh(3), world.fresh(8)]))
    world.check()
