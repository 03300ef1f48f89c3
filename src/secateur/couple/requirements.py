"""What a cut demands of the sizes in Python code.

`x.view(b, t, self.heads, -1)` demands that `self.heads` be the number of coordinates that are left on that axis. A
size that goes anywhere else must keep its value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from secateur.capture import (
    Expression,
    OpCall,
    SizeUse,
    TracedSize,
    attributes_of,
    constant,
    evaluate,
    expression_of,
    leaves_of,
    substitute,
)
from secateur.couple.coupling import Coupling, Reason
from secateur.couple.given_sizes import handler_of
from secateur.couple.units import Axis


@dataclass(frozen=True, eq=False)
class Constraint:
    """`left relation right` has to come out as `outcome`. Leaves are constants, attributes and counts of axes."""

    relation: str
    left: Expression
    right: Expression
    outcome: bool
    reason: Reason


class Requirements:
    """Collects the constraints of a trace, over the axes whose coordinates they count."""

    def __init__(self, coupling: Coupling) -> None:
        self.coupling = coupling
        self.constraints: list[Constraint] = []
        self.count_axes: list[Axis] = []
        self._known: dict[tuple[int, bytes], int] = {}
        self._labels: dict[int, list[Axis]] = {}
        trace = coupling.trace
        numbers = coupling.positions.numbers
        given = {call: use for use in trace.uses if numbers for call in use.calls if call in numbers}
        for index in numbers:
            self._follow(trace.calls[index], given.get(index))
        for use in trace.uses:
            if use not in given.values():
                handler_of(use.function)(self, use)
        for choice in coupling.choices:
            reason = Reason(f"{choice.count} of its coordinates are chosen", choice.call.op, choice.call.module)
            self._add(Constraint("<=", constant(choice.count), self.count(choice.axis), True, reason))
        for comparison in trace.comparisons:
            reason = Reason("sizes are compared", module=comparison.module)
            left, right = self.in_counts(comparison.left), self.in_counts(comparison.right)
            self._add(Constraint(comparison.relation, left, right, comparison.outcome, reason))
        for expression, module in trace.float_uses.items():
            reason = Reason("its size goes into arithmetic with floats", module=module)
            self._keep(self.in_counts(expression), reason)
        self._hold_descriptions()

    def _hold_descriptions(self) -> None:
        """A number by which a layer describes itself, and that the code reads, stays the length of its weight."""
        read = {name for each in self.constraints for side in (each.left, each.right) for name in attributes_of(side)}
        for attribute in read & self.coupling.trace.descriptions.keys():
            length = self.in_counts(self.coupling.trace.descriptions[attribute])
            reason = Reason(f"the code reads {attribute[1][0]}", module=attribute[0])
            self._add(Constraint("==", ("attribute", attribute), length, True, reason))

    def count(self, axis: Axis) -> Expression:
        """The number of coordinates that are left on `axis`."""
        resolved = self.coupling.units.resolve(axis)
        if not resolved.size:
            return constant(axis.shape[1])
        key = axis.shape[1], resolved.tobytes()
        if key not in self._known:
            self._known[key] = len(self.count_axes)
            self.count_axes.append(axis)
        return "count", self._known[key]

    def are_modules(self, axis: Axis) -> bool:
        """Whether the coordinates are the modules of a list."""
        resolve = self.coupling.units.resolve
        return any(np.array_equal(resolve(axis), resolve(each)) for each in self.coupling.modules.values())

    def in_counts(self, expression: Expression) -> Expression:
        """With the lengths of tensors' axes written as counts."""

        def replaced(leaf: Expression) -> Expression:
            if leaf[0] not in ("shape", "stride") or self.coupling.axes_by_index(leaf[1]) is None:
                return leaf
            return self.product(self._axes_in(leaf))

        return substitute(expression, replaced)

    def _axes_in(self, leaf: Expression) -> list[Axis]:
        """The axes of a tensor that a length or a stride of it is the product of."""
        axes = self.coupling.axes_by_index(leaf[1]) if leaf[0] in ("shape", "stride") else None
        if axes is None:
            return []
        if leaf[0] == "shape":
            return [axes[leaf[2]]]
        order = leaf[3]
        return [axes[d] for d in order[order.index(leaf[2]) + 1 :]]

    def product(self, axes: Sequence[Axis], factor: int = 1) -> Expression:
        """The numbers of coordinates that are left on the axes, multiplied."""
        expression = constant(factor)
        for axis in axes:
            expression = "*", expression, self.count(axis)
        return substitute(expression, lambda leaf: leaf)

    def require(self, use: SizeUse, size: Any, axis: Axis) -> None:
        """`size` is the number of coordinates left on `axis`."""
        if isinstance(size, int):
            self.equal(use, expression_of(size), self.count(axis), axis)

    def equal(self, use: SizeUse, size: Expression, count: Expression, *counted: Axis) -> None:
        """A size that the code gave is this number of coordinates: those of the axis `counted`, if it is of one."""
        left = self.in_counts(size)
        why = "its size comes from the code"
        if left[0] == "constant":
            counted = tuple(axis for leaf in leaves_of(size) for axis in self._axes_in(leaf))
            why = "its size is that of an axis that stays" if counted else "its size is a literal in the code"
        elif count[0] != "constant":
            counted = ()
        pinned_for = filter(None, map(self.coupling.reason_of, counted))
        reason = next(pinned_for, Reason(why, use.function, use.module))
        self._add(Constraint("==", left, count, True, reason))

    def _follow(self, call: OpCall, use: SizeUse | None) -> None:
        """The numbers that a call was given for positions follow from how many positions are left."""
        sizes = {int.__add__(size, 0): size for size in sizes_in((use.args, dict(use.kwargs)))} if use else {}
        for number in self.coupling.positions.numbers[call.index]:
            given = self.in_counts(expression_of(sizes.pop(number.value, number.value)))
            left = substitute(("-", self.count(number.axis), constant(number.less)), lambda leaf: leaf)
            reason = Reason("its coordinates are counted in the code", call.op, call.module)
            self._add(Constraint("==", given, left, True, reason))
        if use:
            self.keep(use, tuple(sizes.values()))

    def keep(self, use: SizeUse, tree: Any) -> None:
        """Whatever sizes are in `tree` keep their values."""
        for size in sizes_in(tree):
            reason = Reason("its size is used for something else, too", use.function, use.module)
            self._keep(self.in_counts(size.expression), reason)

    def _keep(self, expression: Expression, reason: Reason) -> None:
        value = evaluate(expression, self.present_value)
        if value is not None:
            self._add(Constraint("==", expression, constant(value), True, reason))

    def present_value(self, leaf: Expression) -> int:
        if leaf[0] == "count":
            return int(self.count_axes[leaf[1]].shape[1])
        return self.coupling.trace.attributes.get(leaf[1], 0)

    def _add(self, constraint: Constraint) -> None:
        if constraint.left != constraint.right and (
            constraint.left[0] != "constant" or constraint.right[0] != "constant"
        ):
            self.constraints.append(constraint)


def sizes_in(tree: Any) -> Iterator[TracedSize]:
    if isinstance(tree, TracedSize):
        yield tree
    elif isinstance(tree, slice):
        yield from sizes_in((tree.start, tree.stop, tree.step))
    elif isinstance(tree, dict):
        yield from sizes_in(tuple(tree.values()))
    elif isinstance(tree, tuple):
        for item in tree:
            yield from sizes_in(item)
