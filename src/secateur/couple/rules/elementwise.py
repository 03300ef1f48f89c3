"""Elementwise operators, factories and copies. Operators that torch tags as pointwise need no entry here."""

from __future__ import annotations

from secateur.capture import OpCall
from secateur.couple.coupling import Coupling
from secateur.couple.rules.registry import dimension, pointwise, rule, unknown
from secateur.couple.units import fixed_axis

rule(
    *"""masked_fill where type_as floor_divide lerp addcmul addcdiv fmod remainder fill zero copy positive
    _prelu_kernel rrelu clamp bernoulli __and__ __or__ pow conj resolve_conj resolve_neg _conj threshold
    zeros_like ones_like full_like empty_like rand_like randn_like softplus elu celu selu mish hardswish
    hardsigmoid leaky_relu log_sigmoid log_sigmoid_forward hardtanh gelu silu nan_to_num expand_as dropout
    native_dropout feature_dropout alpha_dropout bitwise_and bitwise_or bitwise_not logical_and logical_or
    logical_not logical_xor angle complex polar view_as masked_fill maximum minimum""".split()
)(pointwise)


@rule("clone", "_to_copy", "to", "contiguous", "detach", "alias", "lift_fresh", "lift_fresh_copy", "_conj_physical")
def same(coupling: Coupling, call: OpCall) -> None:
    """The same tensor, perhaps in another place or type."""
    pointwise(coupling, call)
    source = call["self"]
    if source is not None:
        coupling.same_tensor(call.out, source)


@rule("prelu")
def prelu(coupling: Coupling, call: OpCall) -> None:
    x, weight = call["self"], call["weight"]
    axes = list(coupling.axes(x))
    if weight.shape and weight.shape[0] > 1:
        axes[1] = coupling.tie(call, axes[1], coupling.axes(weight)[0])
    coupling.set(call.out, axes, call)


@rule("_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_size")
def check(coupling: Coupling, call: OpCall) -> None:
    """Checks of types and values say nothing about channels."""


@rule("_local_scalar_dense", "item", "is_nonzero", "equal")
def look_at_values(coupling: Coupling, call: OpCall) -> None:
    """Python saw a value. A single number has no channels; the comparison of whole tensors has."""
    if any(value.shape for value in call.tensors):
        unknown(coupling, call)


@rule("Tensor.tolist")
def listed(coupling: Coupling, call: OpCall) -> None:
    for value in call.tensors:
        coupling.pin(call, "its numbers go to Python code", *coupling.axes(value))


@rule(
    *"""full zeros ones empty rand randn new_zeros new_ones new_full new_empty scalar_tensor empty_strided
    new_empty_strided empty_permuted""".split()
)
def constant_tensor(coupling: Coupling, call: OpCall) -> None:
    """Every coordinate is alike, so any may go; the sizes themselves are checked where Python gave them."""
    coupling.set(call.out, [coupling.units.fresh(n) for n in call.out.shape], call)


@rule(*"""arange linspace logspace eye tril_indices triu_indices randint randperm hann_window""".split())
def counted_tensor(coupling: Coupling, call: OpCall) -> None:
    """Coordinates hold different values by their position: none may go."""
    coupling.set_fixed(call.out, call)


@rule("tril", "triu")
def triangle(coupling: Coupling, call: OpCall) -> None:
    axes = coupling.axes(call["self"])
    coupling.pin(call, "a triangle is cut out of it", *axes[-2:])
    coupling.set(call.out, axes, call)


@rule("glu")
def glu(coupling: Coupling, call: OpCall) -> None:
    """Half of the channels gate the other half, so channel i goes from both."""
    x, out = call["self"], call.out
    d = dimension(call["dim"], len(x.shape))
    halves, channels = coupling.split(call, coupling.axes(x)[d], (2, out.shape[d]))
    coupling.pin(call, "both halves are needed", halves)
    coupling.set(out, [channels if i == d else axis for i, axis in enumerate(coupling.axes(x))], call)


@rule("view_as_complex")
def view_as_complex(coupling: Coupling, call: OpCall) -> None:
    axes = coupling.axes(call["self"])
    coupling.pin(call, "real and imaginary part are both needed", axes[-1])
    coupling.set(call.out, axes[:-1], call)


@rule("view_as_real")
def view_as_real(coupling: Coupling, call: OpCall) -> None:
    coupling.set(call.out, [*coupling.axes(call["self"]), fixed_axis(2)], call)


@rule("diff")
def difference(coupling: Coupling, call: OpCall) -> None:
    x, out = call["self"], call.out
    d = dimension(call["dim"], len(x.shape))
    for value in call.tensors:
        coupling.pin(call, "neighbours are subtracted", coupling.axes(value)[d])
    coupling.set(out, [fixed_axis(out.shape[d]) if i == d else a for i, a in enumerate(coupling.axes(x))], call)
