"""Constraints between sizes in Python code and what is left of axes: simplified once, solved for each plan."""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache

from secateur.capture import OPERATORS, Attribute, Expression, attributes_of, constant, evaluate, leaves_of, substitute
from secateur.couple.coupling import Reason
from secateur.couple.requirements import Constraint, Requirements

ValueOf = Callable[[Expression], int]
"""Of a count or an attribute."""
_COMPARE: dict[str, Callable[[int, int], bool]] = {"==": operator.eq, "<": operator.lt, "<=": operator.le}


class Conflict(Exception):
    """A constraint that no value of an attribute satisfies."""

    def __init__(self, constraint: Constraint) -> None:
        super().__init__(str(constraint.reason))
        self.constraint = constraint


def settle(requirements: Requirements) -> list[Constraint]:
    """Draws the conclusions that hold for every plan: an attribute that something else needs as it is stays, and an
    axis whose length is a literal is pinned. Returns the constraints that are left to solve."""
    frozen: dict[Attribute, Reason] = {}
    constraints = requirements.constraints
    while True:
        size = len(frozen)
        pinned = False
        left: list[Constraint] = []
        simplify = _simplifier(requirements, frozen)
        for constraint in constraints:
            simple = simplify(constraint)
            leaves = {*leaves_of(simple.left), *leaves_of(simple.right)}
            free = [leaf for leaf in leaves if leaf[0] != "constant"]
            if not free or (simple.left == simple.right and simple.outcome):
                continue
            if len(free) == 1 and _always_holds(simple, free[0], requirements.present_value(free[0])):
                continue
            if len(free) == 1 and simple.relation == "==" and simple.outcome:
                if free[0][0] == "attribute":
                    frozen[free[0][1]] = simple.reason
                else:
                    requirements.coupling.pin_for(requirements.count_axes[free[0][1]], simple.reason)
                    pinned = True
                continue
            left.append(simple)
        constraints = left
        if len(frozen) == size and not pinned:
            return _unique(constraints)


def _always_holds(constraint: Constraint, leaf: Expression, most: int) -> bool:
    """Whether the constraint holds for whatever can be left of the only size in it: twice half of n is n for even n."""
    if leaf in (constraint.left, constraint.right) and "constant" in (constraint.left[0], constraint.right[0]):
        return False  # the common case: a size that is given
    return all(_holds(constraint, {leaf: value}.__getitem__) for value in range(1, most + 1))


def _holds(constraint: Constraint, value_of: ValueOf) -> bool:
    left, right = evaluate(constraint.left, value_of), evaluate(constraint.right, value_of)
    if left is None or right is None:
        return False
    return _COMPARE[constraint.relation](left, right) == constraint.outcome


def _simplifier(requirements: Requirements, frozen: Mapping[Attribute, Reason]) -> Callable[[Constraint], Constraint]:
    """Puts what is known by now into constraints. What makes a constant of one side is the reason for the other."""
    counts = cache(lambda index: requirements.count(requirements.count_axes[index]))

    def replaced(leaf: Expression) -> Expression:
        if leaf[0] == "attribute" and leaf[1] in frozen:
            return constant(requirements.present_value(leaf))
        return counts(leaf[1]) if leaf[0] == "count" else leaf

    def cause(side: Expression) -> Reason | None:
        for leaf in leaves_of(side):
            if leaf[0] == "attribute":
                return frozen[leaf[1]]
            if leaf[0] == "count" and (reason := requirements.coupling.reason_of(requirements.count_axes[leaf[1]])):
                return reason
        return None

    def simplified(given: Constraint) -> Constraint:
        left, right = substitute(given.left, replaced), substitute(given.right, replaced)
        fixed = [side for side, now in ((given.left, left), (given.right, right)) if now[0] == "constant"]
        reason = cause(fixed[0]) if len(fixed) == 1 else None
        return replace(given, left=left, right=right, reason=reason or given.reason)

    return simplified


def _unique(constraints: Iterable[Constraint]) -> list[Constraint]:
    by_content = {(c.relation, c.left, c.right, c.outcome): c for c in constraints}
    return list(by_content.values())


class System:
    """The constraints, ready to be solved for the attributes once the counts are known."""

    def __init__(self, constraints: Iterable[Constraint], attributes: Mapping[Attribute, int]) -> None:
        self.constraints = list(constraints)
        self.present = attributes
        self.attributes = [sorted(attributes_of(c.left) | attributes_of(c.right), key=str) for c in self.constraints]
        self.counts = [
            {leaf[1] for side in (c.left, c.right) for leaf in leaves_of(side) if leaf[0] == "count"}
            for c in self.constraints
        ]
        self.with_attribute: dict[Attribute, list[int]] = {}
        self.with_count: dict[int, list[int]] = {}
        for i in range(len(self.constraints)):
            for attribute in self.attributes[i]:
                self.with_attribute.setdefault(attribute, []).append(i)
            for count in self.counts[i]:
                self.with_count.setdefault(count, []).append(i)

    def solve(self, changed: Iterable[int], count: Callable[[int], int]) -> dict[Attribute, int]:
        """The attributes that have to change, given the counts of axes of which `changed` differ from the full model.

        Starts from the constraints that the changed counts break and follows each attribute that it sets; raises
        `Conflict` at a constraint that cannot be kept.
        """
        new: dict[Attribute, int] = {}

        def value_of(leaf: Expression) -> int:
            return count(leaf[1]) if leaf[0] == "count" else new.get(leaf[1], self.present[leaf[1]])

        # Those with the fewest attributes first: they leave the least choice.
        queue = [(len(self.attributes[i]), i) for i in {i for each in changed for i in self.with_count.get(each, ())}]
        heapq.heapify(queue)
        while queue:
            _, i = heapq.heappop(queue)
            if self._holds(i, value_of):
                continue
            attribute, value = self._repair(i, new, value_of)
            new[attribute] = value
            for j in self.with_attribute[attribute]:
                heapq.heappush(queue, (len(self.attributes[j]), j))
        return {attribute: value for attribute, value in new.items() if value != self.present[attribute]}

    def near(self, conflict: Conflict) -> list[int]:
        """The numbers of the constraint and of others about the same attributes."""
        at = self.constraints.index(conflict.constraint)
        return [at, *(i for attribute in self.attributes[at] for i in self.with_attribute[attribute])]

    def _holds(self, i: int, value_of: ValueOf) -> bool:
        return _holds(self.constraints[i], value_of)

    def _repair(self, i: int, settled: Mapping[Attribute, int], value_of: ValueOf) -> tuple[Attribute, int]:
        """An attribute that is still free, and the value with which the constraint holds."""
        constraint = self.constraints[i]
        if constraint.relation != "==" or not constraint.outcome:
            raise Conflict(constraint)
        options = []
        for attribute in self.attributes[i]:
            if attribute in settled:
                continue
            value = _solved_for(attribute, constraint, value_of)
            if value is None or value < 1:
                continue

            def trial(leaf: Expression, attribute: Attribute = attribute, value: int = value) -> int:
                return value if leaf == ("attribute", attribute) else value_of(leaf)

            if self._holds(i, trial):
                broken = sum(not self._holds(j, trial) for j in self.with_attribute[attribute])
                options.append((broken, str(attribute), attribute, value))
        if not options:
            raise Conflict(constraint)
        _, _, attribute, value = min(options)
        return attribute, value


def _solved_for(attribute: Attribute, constraint: Constraint, value_of: ValueOf) -> int | None:
    """The value of `attribute` that makes both sides equal, where it stands on one side only."""
    for side, other in ((constraint.left, constraint.right), (constraint.right, constraint.left)):
        if attribute in attributes_of(side) and attribute not in attributes_of(other):
            target = evaluate(other, value_of)
            return None if target is None else _inverted(side, attribute, target, value_of)
    return None


def _inverted(expression: Expression, attribute: Attribute, target: int, value_of: ValueOf) -> int | None:
    """What `attribute` must be for `expression` to be `target`; None where that cannot be told."""
    if expression == ("attribute", attribute):
        return target
    if expression[0] not in OPERATORS:
        return None
    operator, left, right = expression
    on_left, on_right = attribute in attributes_of(left), attribute in attributes_of(right)
    if on_left == on_right:
        return None
    other = evaluate(right if on_left else left, value_of)
    if other is None:
        return None
    inner = _undone(operator, on_left, target, other)
    return None if inner is None else _inverted(left if on_left else right, attribute, inner, value_of)


def _undone(operator: str, on_left: bool, target: int, other: int) -> int | None:
    """x for `x operator other == target`, or for `other operator x == target`."""
    match operator:
        case "+":
            return target - other
        case "-":
            return target + other if on_left else other - target
        case "*":
            return target // other if other and target % other == 0 else None
        case "//":
            if on_left:
                return target * other
            return other // target if target else None
        case _:
            return None
