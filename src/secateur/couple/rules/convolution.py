"""Convolutions of any kind, and the unfolding that turns one into a matrix product."""

from __future__ import annotations

from math import prod

from secateur.capture import OpCall
from secateur.couple.axes import merge
from secateur.couple.coupling import Coupling
from secateur.couple.rules.registry import rule
from secateur.couple.units import Axis, fixed_axis


@rule("convolution", "_convolution", "convolution_overrideable")
def convolution(coupling: Coupling, call: OpCall) -> None:
    x, weight, bias, groups = call["input"], call["weight"], call["bias"], call["groups"]
    transposed = bool(call["transposed"])
    axes, weight_axes = coupling.axes(x), coupling.axes(weight)
    batch = len(axes) - len(weight_axes) + 1  # 0 for an input without a batch axis
    coupling.pin(call, "it is space", *axes[batch + 1 :], *weight_axes[2:])
    inputs = axes[batch]
    if groups == 1:
        contracted, outputs = (weight_axes[0], weight_axes[1]) if transposed else (weight_axes[1], weight_axes[0])
        coupling.tie(call, inputs, contracted)
        within = inputs
    elif transposed:
        outputs, within = _grouped_transposed(coupling, call, inputs, weight_axes, groups)
    else:
        outputs, within = _grouped(coupling, call, inputs, weight_axes, groups)
    coupling.contract(weight, 0 if transposed else 1)
    coupling.read(within)
    if bias is not None:
        outputs = coupling.tie(call, outputs, coupling.axes(bias)[0])
    space = [fixed_axis(n) for n in call.out.shape[batch + 1 :]]
    # A transposed convolution multiplies once for every input pixel, an ordinary one for every output pixel.
    pixels = x.shape[batch + 1 :] if transposed else call.out.shape[batch + 1 :]
    coupling.count_macs(call, [*axes[:batch], outputs, within], prod(pixels) * prod(weight.shape[2:]))
    coupling.set(call.out, [*axes[:batch], outputs, *space], call)


def _grouped(coupling: Coupling, call: OpCall, inputs: Axis, weight_axes: list[Axis], groups: int) -> tuple[Axis, Axis]:
    """Input channels are (groups, width), output channels (groups, their width): the groups go together."""
    group, within = _by_group(coupling, call, inputs, groups)
    outputs = weight_axes[0]
    output_group, _ = _by_group(coupling, call, outputs, groups)
    coupling.tie(call, group, output_group)
    if within.shape[1] > 1:
        coupling.tie(call, within, weight_axes[1])
    coupling.group_axes[call.index] = group
    return outputs, within


def _grouped_transposed(
    coupling: Coupling, call: OpCall, inputs: Axis, weight_axes: list[Axis], groups: int
) -> tuple[Axis, Axis]:
    """The weight holds all input channels, and the output channels of one group."""
    coupling.tie(call, inputs, weight_axes[0])
    group, within = _by_group(coupling, call, inputs, groups)
    width = weight_axes[1]
    coupling.group_axes[call.index] = group
    return (merge([group, width]) if width.shape[1] > 1 else group), within


def _by_group(coupling: Coupling, call: OpCall, axis: Axis, groups: int) -> tuple[Axis, Axis]:
    width = axis.shape[1] // groups
    if width == 1:
        return axis, fixed_axis(1)
    group, within = coupling.split(call, axis, (groups, width))
    return group, within


@rule("im2col")
def im2col(coupling: Coupling, call: OpCall) -> None:
    """Patches as columns: each channel becomes as many rows as the kernel has pixels."""
    x, out = call["self"], call.out
    *outer, channels, height, width = coupling.axes(x)
    coupling.pin(call, "it is space", height, width)
    patch = fixed_axis(out.shape[-2] // x.shape[-3])
    coupling.set(out, [*outer, merge([channels, patch]), fixed_axis(out.shape[-1])], call)


@rule("col2im")
def col2im(coupling: Coupling, call: OpCall) -> None:
    x, out = call["self"], call.out
    *outer, rows, places = coupling.axes(x)
    coupling.pin(call, "it is space", places)
    channels, patch = coupling.split(call, rows, (out.shape[-3], rows.shape[1] // out.shape[-3]))
    coupling.pin(call, "it is space", patch)
    coupling.set(out, [*outer, channels, *(fixed_axis(n) for n in out.shape[-2:])], call)
