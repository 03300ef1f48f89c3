"""`Coupling`: walks a trace call by call and lets each operator's rule couple the coordinates of what it touches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from secateur.capture import TAKES_SIZES, OpCall, Output, Trace, Value, within_reach
from secateur.couple.axes import split
from secateur.couple.loops import Loops
from secateur.couple.positions import Positions
from secateur.couple.units import FIXED, Axis, Units, fixed_axis

FORGIVEN: tuple[type[Exception], ...]
FORGIVEN = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What a rule may raise when an operator is used in a way that it does not foresee: the operator then counts as
unknown. The tests forgive nothing."""
_RANDOM_ACCESS_SAFE = frozenset("cat slice split split_with_sizes view reshape linear index index_put_".split())
_MOST_WHYS = 1 << 10
_OTHER_REASONS = 1 << 50
_THE_BATCH = _OTHER_REASONS


@dataclass(frozen=True)
class Reason:
    """Why something cannot be cut."""

    why: str
    op: str = ""
    module: str = ""

    def __str__(self) -> str:
        place = f" in {self.module}" if self.module else ""
        return f"{self.why} (`{self.op}`{place})" if self.op else f"{self.why}{place}"


@dataclass(frozen=True, eq=False)
class Contraction:
    """A sum of products: its multiply-adds are the product of the lengths of `axes`, times `factor`, for so many
    examples."""

    call: OpCall
    axes: tuple[Axis, ...]
    factor: int
    examples: int = 1


@dataclass(frozen=True, eq=False)
class Choice:
    """A call names coordinates of an axis, as the data wants it: `count` of them, which therefore have to be there."""

    call: OpCall
    axis: Axis
    count: int
    why: str
    """Not to cut the axis, unless it is one of experts."""


class Coupling:
    """The axes of every value of a trace, in units; after `run`, what lives and dies together is settled."""

    def __init__(self, trace: Trace, free_outputs: Collection[Output] = ()) -> None:
        self.trace = trace
        self.free_outputs = free_outputs
        """Those that may change their shape."""
        self.units = Units()
        self._whys: dict[str, int] = {}
        self._other_reasons = [Reason("it meets the batch, which stays whole")]
        self.reads: list[Axis] = []
        """Axes that some operator sums over; a unit in none of them, nor in `heads`, is read by nothing."""
        self.mixed: dict[int, list[Axis]] = {}
        """By call, in the order of its rule, the axes along which a coordinate of the result depends on others."""
        self.heads: list[Axis] = []
        """Axes of matrix products that run side by side."""
        self.experts: list[Axis] = []
        """Axes of weights, a matrix for each coordinate, of which the data chooses some."""
        self.looked_up_leaves: set[int] = set()
        """Parameters, by value, of which the data chooses coordinates."""
        self.choices: list[Choice] = []
        self.loops = Loops(trace)
        self.modules: dict[str, Axis] = {}
        """By the path of a list whose modules are experts, those modules."""
        self.positions = Positions(self)
        self.contractions: list[Contraction] = []
        self.group_axes: dict[int, Axis] = {}
        """For grouped convolutions and group norms, by call: the axis of the groups."""
        self.contracted_leaves: set[tuple[int, int]] = set()
        """Parameters' axes, as (value, axis), that are summed over: their input side."""
        self.norm_scales: set[int] = set()
        """Parameters that scale the channels of a batch norm."""
        self._axes: dict[int, list[Axis]] = {}
        self._origin: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._running = 0

    def run(self) -> Coupling:
        from secateur.couple.rules.registry import rule_for, unknown

        inputs = (leaf.shape[0] for leaf in self.trace.leaves if leaf.kind == "input" and leaf.shape)
        batch = self.units.batch(next(inputs, 1), _THE_BATCH)
        for leaf in self.trace.leaves:
            cuttable = leaf.kind in ("parameter", "buffer") and leaf.floating
            self._axes[leaf.index] = [self.units.fresh(n) if cuttable else fixed_axis(n) for n in leaf.shape]
            if leaf.kind == "input" and leaf.shape[:1] == batch.shape[1:]:
                self._axes[leaf.index][0] = batch
            self._origin[leaf.index] = leaf.index, tuple(range(len(leaf.shape)))
        of_leaves = self.units.count
        seen: list[Value] = []
        for call in self.trace.calls:
            if call.index == self.trace.example_calls:
                seen = []  # another pass
            if call.index in self.trace.conjured:
                self._pin_all(seen, Reason("a tensor came from code that torch cannot see", call.op, call.module))
                seen = []
            seen += [value for value in call.outputs if value is not None]
            empty = call.op not in _RANDOM_ACCESS_SAFE and any(0 in value.shape for value in call.tensors)
            self._running = call.index
            rule = unknown if empty or (call.hidden and call.op in TAKES_SIZES) else rule_for(call)
            try:
                rule(self, call)
            except FORGIVEN:
                unknown(self, call)
            self.positions.follow(call)
        self._count_examples(of_leaves)
        self._pin_chosen_channels()
        for output in self.trace.outputs:
            if output not in self.free_outputs:
                self._pin_all([output.value], Reason(f"{output} keeps its shape"))
                if (axis := self.positions.along(output.value)) is not None:
                    self.pin_for(axis, Reason(f"{output} names its coordinates by numbers"))
        if self.trace.training_failed or (self.trace.data_dependent and not self.trace.all_ways_taken):
            self._pin_what_others_may_read()
        else:
            self._let_copies_follow()
        return self

    # -- what rules use

    def axes(self, value: Value) -> list[Axis]:
        return self._axes[value.index]

    def axes_by_index(self, index: int) -> list[Axis] | None:
        return self._axes.get(index)

    def set(self, value: Value | None, axes: Sequence[Axis], call: OpCall) -> None:
        """Gives a result its axes; one that exists already, because the call wrote in place, is coupled to them."""
        if value is None:
            return
        assert [axis.shape[1] for axis in axes] == list(value.shape), (call.op, value.shape, axes)
        if value.index in self._axes:
            for own, other in zip(self._axes[value.index], axes, strict=True):
                self.tie(call, own, other)
        else:
            self._axes[value.index] = list(axes)

    def set_fixed(self, value: Value | None, call: OpCall) -> None:
        """No coordinate can go. Which of them belong to which example is taken from an input that is as long there."""
        if value is not None and value.index not in self._axes:
            axes = [fixed_axis(n) for n in value.shape]
            for other in call.tensors:
                for d, (own, axis) in enumerate(zip(axes, self.axes(other), strict=False)):
                    if own.shape[1] == axis.shape[1] and len(self.units.examples_in(axis)):
                        axes[d] = axis
            self.set(value, axes, call)

    def tie(self, call: OpCall, a: Axis, b: Axis) -> Axis:
        """Coordinate i of both live and die together."""
        reason = self.because(call, "it meets an axis that stays whole")
        self.units.unify(a, b, reason, self.because(call, "it meets an axis that divides in another way"))
        return b if len(b) > len(a) and len(self.units.examples_in(b)) else a  # both mean the same, but b tells more

    def pin(self, call: OpCall, why: str, *axes: Axis) -> None:
        for axis in axes:
            if axis.size:
                self.units.pin(axis, self.because(call, why))

    def pin_for(self, axis: Axis, reason: Reason) -> None:
        if axis.size:
            self._other_reasons.append(reason)
            self.units.pin(axis, _OTHER_REASONS + len(self._other_reasons) - 1)

    def split(self, call: OpCall, axis: Axis, sizes: Sequence[int]) -> list[Axis]:
        return split(self.units, axis, sizes, self.because(call, "it cannot be split that way"))

    def read(self, axis: Axis) -> None:
        """The operator sums over the axis."""
        self.mix(axis)
        if axis.size:
            self.reads.append(axis)

    def mix(self, axis: Axis) -> None:
        """The operator lets coordinates of the axis depend on each other, as a norm does."""
        self.mixed.setdefault(self._running, []).append(axis)

    def note_heads(self, axis: Axis) -> None:
        if axis.size:
            self.heads.append(axis)

    def note_experts(self, weight: Value, axis: Axis) -> None:
        """The coordinates of `axis` are looked up by positions that the data chose; experts, if each is a matrix."""
        self.read(axis)
        self.looked_up_leaves.add(self._origin.get(weight.index, (-1, ()))[0])
        if len(weight.shape) > 2 and self._is_weight(weight):
            self.experts.append(axis)

    def experts_in(self, path: str) -> Axis:
        """The modules of a list, of which the data chooses some."""
        if path not in self.modules:
            self.modules[path] = self.units.fresh(self.trace.lists[path])
            self.experts.append(self.modules[path])
            self.read(self.modules[path])
        return self.modules[path]

    def picked_in_loop(self, call: OpCall, axis: Axis) -> bool:
        """Whether a loop over modules picks a coordinate by the number of its module: both live and die together."""
        children = self.loops.picks.get(call.index, ())
        for path, number in ((child.path, child.number) for child in children):
            self.tie(call, axis[:, number : number + 1], self.experts_in(path)[:, number : number + 1])
        return bool(children)

    def _is_weight(self, value: Value) -> bool:
        """Whether it is a parameter, or made of parameters alone."""
        if value.kind != "result":
            return value.kind == "parameter"
        made_of = self._makers[value.index].tensors
        return bool(made_of) and all(map(self._is_weight, made_of))

    @cached_property
    def _makers(self) -> dict[int, OpCall]:
        """By value, the first call that gave it."""
        return {out.index: call for call in reversed(self.trace.calls) for out in call.outputs if out is not None}

    def because(self, call: OpCall, why: str) -> int:
        """A number for the reason, from which `reason` gets it back: most are never asked for."""
        return (call.index + 1) * _MOST_WHYS + self._whys.setdefault(why, len(self._whys))

    def reason(self, number: int) -> Reason:
        if number >= _OTHER_REASONS:
            return self._other_reasons[number - _OTHER_REASONS]
        call = self.trace.calls[number // _MOST_WHYS - 1]
        return Reason(list(self._whys)[number % _MOST_WHYS], call.op, call.module)

    def reason_of(self, axis: Axis) -> Reason | None:
        """The most common reason for which coordinates of the axis are pinned."""
        reasons = Counter(self.units.reasons(axis).tolist())
        reasons.pop(0, None)
        return self.reason(reasons.most_common(1)[0][0]) if reasons else None

    def contract(self, value: Value, axis: int) -> None:
        """Notes that the weight behind `value` is summed over along `axis`."""
        leaf, permutation = self._origin.get(value.index, (-1, ()))
        if leaf >= 0 and permutation[axis] >= 0:
            self.contracted_leaves.add((leaf, permutation[axis]))

    def count_macs(self, call: OpCall, axes: Sequence[Axis], factor: int = 1) -> None:
        if call.index < self.trace.example_calls:
            self.contractions.append(Contraction(call, tuple(axes), factor))

    def same_tensor(self, new: Value, old: Value, permutation: Sequence[int] | None = None) -> None:
        """`new` is `old`, perhaps with its axes in another order; -1 stands for an axis of length 1 that is new."""
        leaf, before = self._origin.get(old.index, (-1, ()))
        if leaf >= 0 and new.index not in self._origin:
            order = range(len(before)) if permutation is None else permutation
            self._origin[new.index] = leaf, tuple(before[d] if d >= 0 else -1 for d in order)

    def picked(self, axes: Iterable[Axis], length: int) -> Axis:
        """An axis of coordinates that the data picked from these axes: nobody knows from which examples, so they count
        as shared out evenly between them."""
        examples = self.units.examples if any(len(self.units.examples_in(axis)) for axis in axes) else 0
        return (1 + np.arange(length) * examples // length)[None] if examples and length else fixed_axis(length)

    def _count_examples(self, of_leaves: int) -> None:
        """Notes for how many examples each contraction is. Where a weight goes along the first axis of the inputs, that
        axis is no batch: an image without one, for example."""
        units = self.units
        if not units.examples or (units.find(np.arange(units.examples + 1, of_leaves)) <= units.examples).any():
            return
        counts: dict[int, int] = {}

        def examples(axis: Axis) -> int:
            if id(axis) not in counts:
                rows = units.examples_in(axis)
                counts[id(axis)] = np.unique(rows, axis=1).shape[1] if len(rows) and rows.all() else 1
            return counts[id(axis)]

        self.contractions = [replace(each, examples=prod(map(examples, each.axes))) for each in self.contractions]

    # -- pins that no single call causes

    def _pin_all(self, values: Sequence[Value], reason: Reason) -> None:
        for value in values:
            for axis in self._axes.get(value.index, ()):
                self.pin_for(axis, reason)

    def _pin_chosen_channels(self) -> None:
        """Only experts are chosen among: a codebook or a class without some of its entries would be another one."""
        rows = [self.units.resolve(axis).flatten() for axis in self.experts]
        experts = np.concatenate([*rows, [FIXED]])
        for choice in self.choices:
            if not np.isin(self.units.resolve(choice.axis), experts).all():
                self.pin(choice.call, choice.why, choice.axis)

    def _is_cut_like_another(self, leaf: Value) -> bool:
        """Whether it belongs to an expert that no token was sent to, of a list in which others ran: those run the same
        code, and so tell what would read it."""
        found = self.loops.twin(leaf)
        if found is None:
            return False
        twin, call = found
        for own, other in zip(self.axes(leaf), self.axes(twin), strict=True):
            self.tie(call, own, other)
        return True

    def _pin_what_others_may_read(self) -> None:
        """The data decided which layers ran, or the model could not be run in training mode. A layer that did not run
        may read whatever the code of the modules around it holds, along any axis of a length that it has."""
        trace = self.trace
        unread = [leaf for leaf in trace.untouched if not self._is_cut_like_another(leaf)]
        for module, index, axis in within_reach(unread, trace.visible, trace.calls):
            reason = Reason(f"{module}, which may read it, did not run here, but may on other data or in training")
            if index in self._axes:
                self.pin_for(self._axes[index][axis], reason)

    def _let_copies_follow(self) -> None:
        """A buffer that nothing reads, of the shape of a parameter beside it, is cut with it: it holds something for
        each of its weights, such as their rounded values. Where several have that shape, they have to be cut alike."""
        beside: dict[tuple[str, tuple[int, ...]], list[Value]] = {}
        for leaf in self.trace.leaves:
            for name in leaf.names if leaf.kind == "parameter" else ():
                beside.setdefault((name.rpartition(".")[0], leaf.shape), []).append(leaf)
        for leaf in self.trace.untouched:
            alike = beside.get((leaf.name.rpartition(".")[0], leaf.shape), [])
            if leaf.kind == "buffer" and len({self._fate_of(parameter) for parameter in alike}) == 1:
                self._axes[leaf.index] = self.axes(alike[0])

    def _fate_of(self, value: Value) -> tuple[bytes, ...]:
        return tuple(self.units.resolve(axis).tobytes() for axis in self.axes(value))
