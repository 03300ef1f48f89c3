"""Norms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from .registry import FIRST, SCALE, Chain, PerChannel, add, image, line, numbers, stays, tokens

aten = torch.ops.aten

NORM = {**FIRST, "op.weight": 0, "op.bias": 0}
STATISTICS = {**NORM, "op.running_mean": 0, "op.running_var": 0}
image("batch norm", nn.BatchNorm2d(16), cut=STATISTICS, groups=("first",))
line("batch norm in one dimension", nn.BatchNorm1d(16), cut=STATISTICS)
image("batch norm without a scale", nn.BatchNorm2d(16, affine=False), cut={**FIRST, "op.running_mean": 0})
image("batch norm by the batch's statistics", nn.BatchNorm2d(16, track_running_stats=False), cut=NORM)
image(
    "batch norm with given statistics",
    PerChannel(lambda x, s: F.batch_norm(x, s.mean(1), s.var(1), s[:, 0], s[:, 1]), 16, 3),
    cut=SCALE,
)
tokens("batch norm over tokens", nn.BatchNorm1d(4))
image("instance norm", nn.InstanceNorm2d(16, affine=True), cut=NORM)
image("instance norm without a scale", nn.InstanceNorm2d(16))
tokens("instance norm over tokens", nn.InstanceNorm1d(4))
image("group norm", nn.GroupNorm(4, 16), cut=NORM)
image("group norm of one group", nn.GroupNorm(1, 16), cut=NORM)
image("group norm of a group for each channel", nn.GroupNorm(16, 16), cut=NORM)
image("group norm without a scale", nn.GroupNorm(4, 16, affine=False))
tokens(
    "statistics of a group norm",
    lambda x: x * aten.native_group_norm(x.mT.contiguous(), None, None, 2, x.shape[2], 4, 16, 1e-5)[1][:, None],
    **stays("`native_group_norm`"),
)
tokens("group norm over tokens", nn.GroupNorm(2, 4))
tokens("layer norm", nn.LayerNorm(16), cut=NORM)
tokens("layer norm without a bias", nn.LayerNorm(16, bias=False), cut={**FIRST, "op.weight": 0})
tokens("layer norm without a scale", nn.LayerNorm(16, elementwise_affine=False))
tokens("layer norm over two axes", nn.LayerNorm((4, 16)), cut={**FIRST, "op.weight": 1, "op.bias": 1})
tokens("layer norm of a literal size", lambda x: F.layer_norm(x, (16,)), **stays("literal in the code (`layer_norm`"))
tokens("native_layer_norm over space", lambda x: aten.native_layer_norm(x.mT, [4], None, None, 1e-5)[0].mT)
tokens("statistics of a layer norm", lambda x: x + aten.native_layer_norm(x.mT, [4], None, None, 1e-5)[1].mT)
tokens("_fused_rms_norm", PerChannel(lambda x, s: aten._fused_rms_norm(x.mT, [4], s, 1e-5)[0].mT, 4))
tokens("RMS norm", nn.RMSNorm(16), cut={**FIRST, "op.weight": 0})
image(
    "native_batch_norm",
    PerChannel(lambda x, s: torch.native_batch_norm(x, s, None, s, s.exp(), False, 0.1, 1e-5)[0]),
    cut=SCALE,
)
image(
    "statistics of native_batch_norm",
    PerChannel(lambda x, s: x + torch.native_batch_norm(x, s, None, None, None, True, 0.1, 1e-5)[1][:, None, None]),
    cut=SCALE,
)
image(
    "_batch_norm_no_update",
    PerChannel(lambda x, s: aten._batch_norm_no_update(x, s, None, s, s.exp(), 0.1, 1e-5)[0]),
    cut=SCALE,
)
image(
    "_batch_norm_with_update",
    PerChannel(lambda x, s: aten._batch_norm_with_update(x, s, None, s.clone(), s.exp(), 0.1, 1e-5)[0]),
    cut=SCALE,
)
image(
    "_native_batch_norm_legit",
    PerChannel(lambda x, s: aten._native_batch_norm_legit.no_stats(x, s, None, True, 0.1, 1e-5)[0]),
    cut=SCALE,
)
image(
    "_native_batch_norm_legit_no_training",
    PerChannel(lambda x, s: aten._native_batch_norm_legit_no_training(x, s, None, s, s.exp(), 0.1, 1e-5)[0]),
    cut=SCALE,
)
image(
    "_native_batch_norm_legit_functional",
    PerChannel(lambda x, s: aten._native_batch_norm_legit_functional(x, s, None, s, s.exp(), False, 0.1, 1e-5)[0]),
    cut=SCALE,
)
add(
    "weight norm",
    lambda: Chain(nn.Conv2d(3, 16, 3), parametrizations.weight_norm(nn.Conv2d(16, 12, 1)), nn.Conv2d(12, 5, 1)),
    numbers(2, 3, 6, 6),
    {
        "first.weight": 0,
        "op.parametrizations.weight.original1": 1,
        "op.parametrizations.weight.original1#2": 0,
        "op.parametrizations.weight.original0": 0,
        "last.weight": 1,
    },
)
tokens(
    "weight norm along the other axis",
    PerChannel(lambda x, s: F.linear(x, torch._weight_norm(s, s[:1].exp(), 1)), 12, 16),
    reads=12,
    cut={},
)
tokens(
    "norms of a weight norm",
    PerChannel(lambda x, s: x + aten._weight_norm_interface(s, s[:, :1].exp(), 0)[1][:, 0], 16, 8),
    cut=SCALE,
)
