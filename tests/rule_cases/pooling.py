"""Pooling and resampling."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .registry import FIRST, Chain, add, image, line, numbers, stays, tokens, volume

aten = torch.ops.aten

for n, base in {1: line, 2: image, 3: volume}.items():
    for kind in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool"):
        pooled = getattr(F, f"{kind}{n}d")
        base(f"{kind}{n}d", lambda x, f=pooled: f(x, 2))
    base(f"upsample_nearest{n}d", lambda x: F.interpolate(x, scale_factor=2))
    base(f"_upsample_nearest_exact{n}d", lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"))
    base(
        f"upsample, {n} linear axes",
        lambda x, n=n: F.interpolate(x, scale_factor=2, mode=("linear", "bilinear", "trilinear")[n - 1]),
    )
image("max_pool2d with its places", lambda x: F.max_pool2d(x, 2, return_indices=True)[0])
volume("max_pool3d with its places", lambda x: F.max_pool3d(x, 2, return_indices=True)[0])
image(
    "mkldnn_max_pool2d", lambda x: aten.mkldnn_max_pool2d(x.to_mkldnn(), [2, 2]).to_dense(), cut={}, left={"first": ""}
)
image("upsample_bicubic2d", lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"))
image("upsample_bilinear2d, antialiased", lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True))
image("upsample_bicubic2d, antialiased", lambda x: F.interpolate(x, scale_factor=0.5, mode="bicubic", antialias=True))
image("pooling to one", lambda x: F.adaptive_avg_pool2d(x, 1))
add(
    "pooling without a batch",
    lambda: Chain(nn.Conv2d(3, 16, 3), lambda x: F.max_pool2d(x, 2), nn.Conv2d(16, 5, 1)),
    numbers(3, 8, 8),
    FIRST,
)
tokens("pooling over channels", lambda x: F.avg_pool1d(x, 2), reads=8, **stays("it is space (`avg_pool"))
image("grid_sample", lambda x: F.grid_sample(x, torch.linspace(-0.9, 0.7, 36).view(2, 3, 3, 2), align_corners=False))
volume(
    "grid_sample in three dimensions",
    lambda x: F.grid_sample(x, torch.linspace(-0.9, 0.7, 48).view(2, 2, 2, 2, 3), align_corners=False),
)
tokens(
    "a learned grid",
    lambda x: F.grid_sample(
        torch.arange(32.0).view(2, 1, 4, 4).to(x.dtype), x.unflatten(-1, (8, 2)), align_corners=False
    )[:, 0].repeat(1, 1, 2),
    **stays("it is space (`grid_sampler_2d`"),
)

image("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), reads=4, cut={"first.weight": 0, "last.weight": 1})
image("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), reads=64)
add(
    "pixel_shuffle over what a linear layer made",
    lambda: Chain(nn.Linear(6, 16), lambda x: F.pixel_shuffle(x[..., None], 2)[:, 0], nn.Linear(2, 5)),
    numbers(2, 4, 6),
    {},
    left={"first": "it is space (`pixel_shuffle`"},
)
tokens(
    "pixel_unshuffle over channels",
    lambda x: F.pixel_unshuffle(x, 2).flatten(-2),
    **stays("it is space (`pixel_unshuffle`"),
)
image("channel_shuffle", lambda x: F.channel_shuffle(x, 2))
image("channel_shuffle in four groups", lambda x: F.channel_shuffle(x, 4))
image("native_channel_shuffle", lambda x: F.native_channel_shuffle(x, 2))
