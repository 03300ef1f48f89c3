"""Pooling, resampling and the exchange of space for channels: space stays, channels pass."""

from __future__ import annotations

import re

from secateur.capture import OpCall
from secateur.couple.axes import merge
from secateur.couple.coupling import Coupling
from secateur.couple.rules.registry import rule
from secateur.couple.units import fixed_axis

_SPATIAL = """max_pool avg_pool adaptive_avg_pool _adaptive_avg_pool adaptive_max_pool upsample_nearest
    _upsample_nearest_exact upsample_linear upsample_bilinear upsample_bicubic upsample_trilinear""".split()


@rule(
    *(f"{kind}{n}d" for n in (1, 2, 3) for kind in _SPATIAL),
    *"""max_pool2d_with_indices max_pool3d_with_indices mkldnn_max_pool2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa
    grid_sampler_2d grid_sampler_3d""".split(),
)
def pool(coupling: Coupling, call: OpCall) -> None:
    x, *others = call.tensors
    match = re.search(r"(\d)d", call.op)
    space = int(match[1]) if match else 2
    axes = coupling.axes(x)
    coupling.pin(call, "it is space", *axes[-space:], *(axis for value in others for axis in coupling.axes(value)))
    for out in call.outputs:
        if out is not None:
            coupling.set(out, [*axes[:-space], *(fixed_axis(n) for n in out.shape[-space:])], call)


@rule("pixel_shuffle")
def pixel_shuffle(coupling: Coupling, call: OpCall) -> None:
    """Channels are (channels, r, r): a channel goes with all of its r² parts."""
    x, out, factor = call["self"], call.out, call["upscale_factor"]
    *outer, channels, height, width = coupling.axes(x)
    kept, *within = coupling.split(call, channels, (out.shape[-3], factor, factor))
    coupling.pin(call, "it is space", *within, height, width)
    coupling.set(out, [*outer, kept, *(fixed_axis(n) for n in out.shape[-2:])], call)


@rule("pixel_unshuffle")
def pixel_unshuffle(coupling: Coupling, call: OpCall) -> None:
    x, out, factor = call["self"], call.out, call["downscale_factor"]
    *outer, channels, height, width = coupling.axes(x)
    coupling.pin(call, "it is space", height, width)
    merged = merge([channels, fixed_axis(factor), fixed_axis(factor)])
    coupling.set(out, [*outer, merged, *(fixed_axis(n) for n in out.shape[-2:])], call)


@rule("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(coupling: Coupling, call: OpCall) -> None:
    """Channels (groups, width) become (width, groups); the number of groups stays."""
    x, groups = call["self"], call["groups"]
    axes = list(coupling.axes(x))
    group, within = coupling.split(call, axes[1], (groups, x.shape[1] // groups))
    coupling.pin(call, "the number of groups stays", group)
    axes[1] = merge([within, group])
    coupling.set(call.out, axes, call)
