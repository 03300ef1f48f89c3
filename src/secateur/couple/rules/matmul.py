"""Matrix products: the contracted axes of both sides go together, the outer axes pass to the result."""

from __future__ import annotations

from secateur.capture import OpCall, Value
from secateur.couple.coupling import Coupling
from secateur.couple.rules.registry import rule, unknown
from secateur.couple.units import Axis, fixed_axis


@rule("mm", "bmm", "matmul", "mv", "dot", "vdot")
def product(coupling: Coupling, call: OpCall) -> None:
    names = [name for name, value in call.args.items() if isinstance(value, Value)]
    left, right = call[names[0]], call[names[1]]
    coupling.set(call.out, _multiply(coupling, call, left, right), call)


@rule("addmm", "baddbmm", "addmv", "addbmm")
def added_product(coupling: Coupling, call: OpCall) -> None:
    if call.op == "addbmm":
        return unknown(coupling, call)
    bias, left, right = call.tensors[:3]
    axes = _multiply(coupling, call, left, right)
    return coupling.set(call.out, _with_bias(coupling, call, axes, bias), call)


@rule("linear")
def linear(coupling: Coupling, call: OpCall) -> None:
    x, weight, bias = call["input"], call["weight"], call["bias"]
    if len(weight.shape) == 1:
        return unknown(coupling, call)
    outputs, inputs = coupling.axes(weight)
    *outer, contracted = coupling.axes(x)
    coupling.tie(call, contracted, inputs)
    coupling.read(contracted)
    coupling.contract(weight, 1)
    coupling.count_macs(call, [*outer, outputs, contracted])
    axes = [*outer, outputs]
    return coupling.set(call.out, axes if bias is None else _with_bias(coupling, call, axes, bias), call)


def _multiply(coupling: Coupling, call: OpCall, left: Value, right: Value) -> list[Axis]:
    """The axes of left @ right, with vectors and batch axes as NumPy treats them."""
    a, b = list(coupling.axes(left)), list(coupling.axes(right))
    vector_left, vector_right = len(a) == 1, len(b) == 1
    coupling.contract(left, len(a) - 1)
    coupling.contract(right, 0 if vector_right else len(b) - 2)
    a = [fixed_axis(1), *a] if vector_left else a
    b = [*b, fixed_axis(1)] if vector_right else b
    coupling.tie(call, a[-1], b[-2])
    coupling.read(a[-1])
    batch = []
    depth = max(len(a), len(b)) - 2
    outer = ([*[fixed_axis(1)] * (depth + 2 - len(side)), *side[:-2]] for side in (a, b))
    for own, other in zip(*outer, strict=True):
        if own.shape[1] == other.shape[1]:
            own = coupling.tie(call, own, other)
            coupling.note_heads(own)
        batch.append(other if own.shape[1] == 1 else own)
    coupling.count_macs(call, [*batch, a[-2], b[-1], a[-1]])
    return batch + ([] if vector_left else [a[-2]]) + ([] if vector_right else [b[-1]])


def _with_bias(coupling: Coupling, call: OpCall, axes: list[Axis], bias: Value) -> list[Axis]:
    offset = len(axes) - len(bias.shape)
    for i, axis in enumerate(coupling.axes(bias)):
        if axis.shape[1] == axes[offset + i].shape[1]:
            axes[offset + i] = coupling.tie(call, axes[offset + i], axis)
    return axes


@rule("einsum")
def einsum(coupling: Coupling, call: OpCall) -> None:
    equation = call["equation"].replace(" ", "")
    if "." in equation or "->" not in equation:
        return unknown(coupling, call)
    inputs, output = equation.split("->")
    axes: dict[str, Axis] = {}
    for letters, value in zip(inputs.split(","), call["tensors"], strict=True):
        for letter, axis in zip(letters, coupling.axes(value), strict=True):
            if letter not in axes or axes[letter].shape[1] == 1:
                axes[letter] = axis
            elif axis.shape[1] > 1:
                axes[letter] = coupling.tie(call, axes[letter], axis)
    for letter, axis in axes.items():
        if letter not in output:
            coupling.read(axis)
    coupling.count_macs(call, list(axes.values()))
    return coupling.set(call.out, [axes[letter] for letter in output], call)


@rule("_grouped_mm")
def grouped_product(coupling: Coupling, call: OpCall) -> None:
    """Mixtures of experts: the rows of x [tokens, K] are dealt out to the experts w [E, K, N] by offsets."""
    x, weight = call["self"], call["mat2"]
    if len(x.shape) != 2 or len(weight.shape) != 3 or len(call.out.shape) != 2:
        return unknown(coupling, call)
    tokens, contracted = coupling.axes(x)
    experts, inputs, outputs = coupling.axes(weight)
    coupling.tie(call, contracted, inputs)
    coupling.read(contracted)
    coupling.contract(weight, 1)
    coupling.tie(call, experts, coupling.axes(call["offs"])[0])
    coupling.note_experts(weight, experts)
    coupling.pin(call, "tokens are dealt out by number", tokens)
    coupling.count_macs(call, [tokens, contracted, outputs])
    return coupling.set(call.out, [tokens, outputs], call)
