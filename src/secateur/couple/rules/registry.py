"""The table of rules, and what happens to operators that are not in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from secateur.capture import OpCall, Value
from secateur.couple.units import Axis, fixed_axis

if TYPE_CHECKING:
    from secateur.couple.coupling import Coupling

Rule = Callable[["Coupling", OpCall], None]
RULES: dict[str, Rule] = {}


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """Registers a rule for operators, which are named without namespace, overload and in-place underscore."""

    def register(function: Rule) -> Rule:
        for operator in operators:
            RULES[operator] = function
        return function

    return register


def rule_for(call: OpCall) -> Rule:
    known = RULES.get(call.op) or RULES.get(call.op.rstrip("_"))
    return known or (pointwise if call.pointwise else unknown)


def unknown(coupling: Coupling, call: OpCall) -> None:
    """Nothing is known about the operator, so everything that it touches stays."""
    # Another library's, or an autograd function; Tensor.numpy and its like leave torch for good.
    foreign = "::" in call.op or ("." in call.op and not call.op.startswith("Tensor."))
    why = "no rule for this operator" + ("; secateur.rule teaches one" if foreign else "")
    for value in call.tensors:
        coupling.pin(call, why, *coupling.axes(value))
    for out in call.outputs:
        coupling.set_fixed(out, call)


def pointwise(coupling: Coupling, call: OpCall) -> None:
    """Coordinates that broadcast onto each other go together."""
    for out in call.outputs:
        if out is not None:
            inputs = [value for value in call.tensors if len(value.shape) <= len(out.shape)]
            coupling.set(out, broadcast(coupling, call, inputs, out.shape), call)


def broadcast(coupling: Coupling, call: OpCall, values: Sequence[Value], shape: Sequence[int]) -> list[Axis]:
    axes: list[Axis | None] = [None] * len(shape)
    for value in values:
        offset = len(shape) - len(value.shape)
        for i, axis in enumerate(coupling.axes(value)):
            if value.shape[i] == shape[offset + i]:
                present = axes[offset + i]
                axes[offset + i] = axis if present is None else coupling.tie(call, present, axis)
    return [fixed_axis(n) if axis is None else axis for axis, n in zip(axes, shape, strict=True)]


def dimension(d: int, ndim: int) -> int:
    return d % ndim if ndim else 0


def dimensions(dims: int | Sequence[int] | None, ndim: int) -> list[int]:
    """The listed dimensions, counted from the front; all of them where none is listed."""
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return list(range(ndim))
    return [dimension(d, ndim) for d in ([dims] if isinstance(dims, int) else dims)]
