"""Convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .registry import FIRST, Chain, PerChannel, add, image, line, numbers, volume

TWO = {"first.weight": 0, "op.weight": 1, "op.weight#2": 0, "last.weight": 1}
image("convolution", nn.Conv2d(16, 12, 3, stride=2), reads=12, cut={**TWO, "op.bias": 0}, groups=("first", "op"))
image("convolution without bias", nn.Conv2d(16, 12, 3, dilation=2, bias=False), reads=12, cut=TWO)
image(
    "convolution in groups",
    nn.Conv2d(16, 32, 3, groups=4),
    reads=32,
    cut={"first.weight": 0, "op.bias": 0, "last.weight": 1},
    groups=("first", "op"),
)
image("depthwise convolution", nn.Conv2d(16, 16, 3, groups=16), cut={**FIRST, "op.weight": 0, "op.bias": 0})
image(
    "depthwise convolution, two for each",
    nn.Conv2d(16, 32, 3, groups=16),
    reads=32,
    cut={**FIRST, "op.weight": 0, "op.bias": 0},
)
image(
    "groups of one output",
    nn.Conv2d(16, 4, 3, groups=4),
    reads=4,
    cut={"first.weight": 0, "op.weight": 0, "last.weight": 1},
)
image(
    "transposed convolution",
    nn.ConvTranspose2d(16, 12, 2, stride=2),
    reads=12,
    cut={**FIRST, "op.weight": 0, "op.weight#2": 1, "op.bias": 0},
    groups=("first", "op"),
)
image(
    "transposed convolution in groups",
    nn.ConvTranspose2d(16, 32, 2, groups=4),
    reads=32,
    cut={"first.weight": 0, "op.bias": 0, "last.weight": 1},
)
image(
    "transposed depthwise convolution",
    nn.ConvTranspose2d(16, 16, 2, groups=16),
    cut={**FIRST, "op.weight": 0, "op.bias": 0},
)
line("convolution in one dimension", nn.Conv1d(16, 12, 3), reads=12, cut={**TWO, "op.bias": 0})
volume("convolution in three dimensions", nn.Conv3d(16, 16, 2))
add(
    "convolution without a batch",
    lambda: Chain(nn.Conv2d(3, 16, 3), F.relu, nn.Conv2d(16, 5, 1)),
    numbers(3, 8, 8),
    FIRST,
)
add(
    "convolution over what a linear layer made",
    lambda: Chain(nn.Linear(6, 16), nn.Conv1d(4, 4, 3, padding=1), nn.Linear(16, 5)),
    numbers(2, 4, 6),
    {},
    left={"first": "it is space (`convolution`"},
)
image(
    "convolution with a standardised kernel",
    PerChannel(lambda x, s: F.conv2d(x, s - s.mean((1, 2, 3), keepdim=True)), 12, 16, 4, 4),
    reads=12,
    cut={**FIRST, "op.scale": 0, "op.scale#2": 1},
)
image(
    "_convolution",
    PerChannel(
        lambda x, s: torch._convolution(x, s, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, True, True),
        12,
        16,
        1,
        1,
    ),
    reads=12,
    cut={**FIRST, "op.scale": 0, "op.scale#2": 1},
)

add(
    "im2col",
    lambda: Chain(nn.Conv2d(3, 16, 3), lambda x: F.unfold(x, 2).mT, nn.Linear(64, 5)),
    numbers(2, 3, 8, 8),
    FIRST,
)
add(
    "im2col of what a linear layer made",
    lambda: Chain(nn.Linear(6, 16), lambda x: F.unfold(x[:, None], 2).mT, nn.Linear(4, 5)),
    numbers(2, 4, 6),
    {},
    left={"first": "it is space (`im2col`"},
)
add(
    "col2im",
    lambda: Chain(nn.Linear(6, 64), lambda x: F.fold(x.mT, (4, 4), 2, stride=2), nn.Conv2d(16, 5, 1)),
    numbers(2, 4, 6),
    {"first.weight": 0, "last.weight": 1},
)
add(
    "col2im over what a linear layer made",
    lambda: Chain(nn.Linear(6, 16), lambda x: F.fold(x, (8, 8), 2, stride=2), nn.Conv2d(1, 5, 1)),
    numbers(2, 4, 6),
    {},
    left={"first": "it is space (`col2im`"},
)
