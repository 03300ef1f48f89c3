"""Batch, layer, group, instance, RMS and weight norms: scales follow their channels; statistics are over the rest."""

from __future__ import annotations

from secateur.capture import OpCall
from secateur.couple.coupling import Coupling
from secateur.couple.rules.registry import rule
from secateur.couple.units import fixed_axis


@rule(
    *"""batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training
    _native_batch_norm_legit_functional _batch_norm_with_update _batch_norm_no_update cudnn_batch_norm
    miopen_batch_norm instance_norm""".split()
)
def batch_norm(coupling: Coupling, call: OpCall) -> None:
    x, *per_channel = call.tensors
    axes = list(coupling.axes(x))
    for value in per_channel:
        axes[1] = coupling.tie(call, axes[1], coupling.axes(value)[0])
    if call["weight"] is not None:
        coupling.norm_scales.add(call["weight"].index)
    first, *statistics = call.outputs
    coupling.set(first, axes, call)
    for out in statistics:
        if out is not None and out.shape == (x.shape[1],):
            coupling.set(out, [axes[1]], call)
        else:
            coupling.set_fixed(out, call)


@rule("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm")
def layer_norm(coupling: Coupling, call: OpCall) -> None:
    x, *scales = call.tensors
    axes = list(coupling.axes(x))
    first = len(axes) - len(call["normalized_shape"])
    for value in scales:
        for i, axis in enumerate(coupling.axes(value)):
            axes[first + i] = coupling.tie(call, axes[first + i], axis)
    for axis in axes[first:]:
        coupling.mix(axis)
    out, *statistics = call.outputs
    coupling.set(out, axes, call)
    for statistic in statistics:
        if statistic is not None:
            left = [fixed_axis(1) if i >= first else axis for i, axis in enumerate(axes)]
            coupling.set(statistic, left[: len(statistic.shape)], call)


@rule("group_norm", "native_group_norm")
def group_norm(coupling: Coupling, call: OpCall) -> None:
    """Groups keep equal sizes: either a whole group goes, or the same place in every group."""
    x, *scales = call.tensors
    groups = call["num_groups"] if "num_groups" in call.args else call["group"]
    axes, channels = list(coupling.axes(x)), x.shape[1]
    for value in scales:
        axes[1] = coupling.tie(call, axes[1], coupling.axes(value)[0])
    if groups == 1:
        group, within = fixed_axis(1), axes[1]
    elif groups == channels:
        group, within = axes[1], fixed_axis(1)
    else:
        group, within = coupling.split(call, axes[1], (groups, channels // groups))
    coupling.mix(within)
    coupling.group_axes[call.index] = group
    out, *statistics = call.outputs
    coupling.set(out, axes, call)
    for statistic in statistics:
        coupling.set(statistic, [axes[0], group], call)


@rule("_weight_norm_interface", "_weight_norm")
def weight_norm(coupling: Coupling, call: OpCall) -> None:
    direction, magnitude = call["v"], call["g"]
    axes = list(coupling.axes(direction))
    for i, axis in enumerate(coupling.axes(magnitude)):
        if magnitude.shape[i] > 1:
            axes[i] = coupling.tie(call, axes[i], axis)
        else:
            coupling.mix(axes[i])
    out, *norms = call.outputs
    coupling.set(out, axes, call)
    for value in norms:
        coupling.set(value, coupling.axes(magnitude), call)
