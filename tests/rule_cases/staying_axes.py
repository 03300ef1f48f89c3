"""Axes that stay, though something that can be cut runs along them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .indexing import which
from .registry import FIRST, Chain, Conv, PerChannel, add, numbers, stays, tokens

WEIGHED: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "parts of a number": (lambda x: torch.view_as_real(torch.complex(x, x.sin())), 2),
    "the largest": (lambda x: x.topk(4, 1)[0].mT, 4),
    "the sorted": (lambda x: x.sort(1)[0].mT, 4),
    "every second place": (lambda x: x[:, ::2].mT, 2),
    "windows": (lambda x: x.unfold(1, 2, 1).sum(1), 2),
    "mirrored places": (lambda x: F.pad(x.mT, (2, 2), mode="reflect"), 8),
    "stacked": (lambda x: torch.stack([x, x.exp(), x.sin(), x.cos()], -1), 4),
    "picked places": (lambda x: x[:, torch.tensor([0, 3, 1, 1])].mT, 4),
    "places of a mask": (lambda x: x[:, torch.tensor([True, True, False, False])].mT, 2),
    "padded places": (lambda x: F.pad(x.mT, (1, 3)), 8),
    "cropped places": (lambda x: F.pad(x.mT, (-1, 5)), 8),
    "statistics": (lambda x: torch.stack(torch.var_mean(x, 1), -1), 2),
}
for name, (op, length) in WEIGHED.items():
    tokens(f"{name}, weighed", PerChannel(lambda x, s, f=op: (f(x) * s).sum(-1), length))
add(
    "patches, weighed",
    lambda: Chain(Conv(2, 3, 16, 3), PerChannel(lambda x, s: (F.unfold(x, 2) * s).sum(-1), 49), nn.Linear(64, 5)),
    numbers(2, 3, 8, 8),
    FIRST,
)
add(
    "folded places, weighed",
    lambda: Chain(
        nn.Linear(6, 64),
        PerChannel(lambda x, s: (F.fold(x.mT, (4, 4), 2, stride=2) * s).sum(-1), 4),
        Conv(1, 16, 5, 1),
    ),
    numbers(2, 4, 6),
    {"first.weight": 0, "last.weight": 1},
)


class Shortcut(nn.Module):
    """The result is added to the input: its channels stay, and what they were split from has to stay with them."""

    def __init__(self, width: int, op: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.norm, self.last, self.op = nn.Linear(6, width), nn.LayerNorm(width), nn.Linear(6, 5), op

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.op(self.norm(self.first(x))))


SPLIT: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "glu": (12, F.glu),
    "pairs": (12, lambda x: torch.view_as_complex(x.unflatten(-1, (6, -1)).contiguous()).abs()),
    "neighbours": (12, lambda x: x[..., ::2] + x[..., 1::2].exp()),
    "chunks": (24, lambda x: sum(x.chunk(4, -1))),
    "patches": (24, lambda x: F.fold(x.mT, (4, 4), 2, stride=2).amax(-1).mT),
    "pixels": (24, lambda x: F.pixel_shuffle(x.mT[..., None], 2).flatten(2)[..., :4].mT),
    "shuffled": (6, lambda x: F.channel_shuffle(x.mT[..., None], 2)[..., 0].mT),
}
for name, (width, op) in SPLIT.items():
    add(f"{name} onto the input", lambda w=width, f=op: Shortcut(w, f), numbers(2, 4, 6), {}, left={"first": ""})


class ReadTwice(nn.Module):
    """A function of the input and of parameters, one of which is read by a mean as well, along the axis in question."""

    def __init__(self, function: Callable[..., Tensor], reads: int, **parameters: tuple[int, ...]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 16), nn.Linear(reads, 5), function
        for name, shape in parameters.items():
            setattr(self, name, nn.Parameter(torch.randn(shape)))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self, self.first(x)))


def read_twice(
    name: str, cut: Mapping[str, int], function: Callable[..., Tensor], reads: int = 16, **shapes: tuple[int, ...]
) -> None:
    add(name, lambda: ReadTwice(function, reads, **shapes), numbers(2, 4, 6), cut)


ADDED = {**FIRST, "rows": 1}
read_twice(
    "rows that are added by number",
    ADDED,
    lambda m, x: x.index_add(1, torch.arange(4), m.rows.expand(2, -1, -1)) + m.rows.mean(0),
    rows=(4, 16),
)
read_twice(
    "rows that are scattered",
    ADDED,
    lambda m, x: (
        x.scatter(1, torch.arange(4)[:, None].expand(2, -1, x.shape[2]), m.rows.expand(2, -1, -1)) + m.rows.mean(0)
    ),
    rows=(4, 16),
)
read_twice("rows that are written by a mask", FIRST, lambda m, x: written(x, m.rows) + m.rows.mean(), rows=(4,))
read_twice("rows that are looked up", ADDED, lambda m, x: x + m.rows[torch.arange(4)] + m.rows.mean(0), rows=(8, 16))
read_twice(
    "rows that are selected",
    ADDED,
    lambda m, x: x + m.rows.index_select(0, torch.arange(4)) + m.rows.mean(0),
    rows=(8, 16),
)
read_twice(
    "rows that are gathered",
    ADDED,
    lambda m, x: x + m.rows.gather(0, torch.arange(4)[:, None].expand(-1, x.shape[2])) + m.rows.mean(0),
    rows=(8, 16),
)


def written(x: Tensor, values: Tensor) -> Tensor:
    """Four values to four places, the same for every channel."""
    y = x.mean(-1)[0].clone()
    y[torch.tensor([True, True, True, True])] = values
    return x + y[:, None]


def dealt(m: Any, x: Tensor) -> Tensor:
    """Learned tokens go to two experts; tokens, experts and results are read by other means, too."""
    tokens, weights = (each.bfloat16() if x.dtype == torch.bfloat16 else each for each in (m.tokens, m.experts))
    out = torch._grouped_mm(tokens, weights, offs=torch.tensor([3, 8], dtype=torch.int32))
    return x.mean() + (out * m.mix[:, None]).sum(0) + m.tokens.mean() + m.experts.mean()


read_twice(
    "tokens that are dealt out",
    {"first.weight": 0, "tokens": 1, "last.weight": 1},
    dealt,
    tokens=(8, 16),
    experts=(2, 16, 16),
    mix=(8,),
)


class Mixed(nn.Module):
    """All layers' last states, weighed; the first states are learned, and read by a mean as well."""

    def __init__(self, gates: bool) -> None:
        super().__init__()
        self.gates = gates
        self.cell, self.last = nn.LSTM(6, 6 if gates else 12, 1 if gates else 4), nn.Linear(6 if gates else 12, 5)
        self.mix, self.state = nn.Parameter(torch.randn(4, 1, 1)), nn.Parameter(torch.randn(4, 1, 12))

    def forward(self, x: Tensor) -> Tensor:
        if self.gates:  # the width stays because of the input, and every gate is read by a mean
            return self.last(x + self.cell(x)[0] + self.cell.weight_hh_l0.mean(0))
        state = self.state.expand(-1, x.shape[1], -1).contiguous()
        _, (hidden, inner) = self.cell(x, (state, state.exp()))
        return self.last((hidden * self.mix).sum(0) + inner[0] + self.state.mean(0))


add(
    "states of four layers",
    lambda: Mixed(False),
    numbers(5, 2, 6),
    {"cell.weight_hh_l0": 1, "state": 2, "last.weight": 1},
)
add("gates", lambda: Mixed(True), numbers(5, 2, 6), {}, left={"cell": ""})

tokens(
    "diff over channels, beside another reader",
    lambda x: x.diff(dim=-1).mean(-1, keepdim=True) * x.mean(-1, keepdim=True),
    1,
    {},
)
tokens(
    "scatter of a part",
    lambda x: x.scatter(1, which()[None, :, None].expand(2, 3, 8), 0.5),
    **stays("part of it is indexed (`scatter`"),
)
tokens("narrow to all", lambda x: x.narrow(1, 0, 4))
tokens(
    "an empty statistic",
    PerChannel(lambda x, s: x + torch.native_batch_norm(x, s, None, s, s.exp(), False, 0.1, 1e-5)[1].sum(), 4),
)
add(
    "space to depth first",
    lambda: Chain(nn.PixelUnshuffle(2), nn.Conv2d(12, 16, 1), nn.Conv2d(16, 5, 1)),
    numbers(2, 3, 8, 8),
    {"op.weight": 0, "last.weight": 1},
)


class Repeated(nn.Module):
    """The input, repeated as often as an attribute says, which can become less."""

    def __init__(self, function: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.function, self.times, self.last = function, 8, nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(x, self.times))


add("repeat by attribute", lambda: Repeated(lambda x, n: x.repeat(1, 1, n)), numbers(2, 4, 6), {"last.weight": 1})
add(
    "repeat_interleave by attribute",
    lambda: Repeated(lambda x, n: x.repeat_interleave(n, -1)),
    numbers(2, 4, 6),
    {"last.weight": 1},
)


class Weakest(nn.Module):
    """The channel that matters least is read by its number."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 16), nn.Linear(16, 5), function
        with torch.no_grad():
            self.first.weight[3] *= 0.01

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x * self.function(x))


add("a slice of the weakest channel", lambda: Weakest(lambda x: x[..., 3:4]), numbers(2, 4, 6), {})
add("the weakest of a list", lambda: Weakest(lambda x: x.split([3, 1, 12], -1)[1]), numbers(2, 4, 6), {})
