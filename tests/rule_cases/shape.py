"""Operators that move, join and divide axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import ALONE, FIRST, SCALE, Chain, PerChannel, add, image, line, numbers, stays, tokens, volume

aten = torch.ops.aten

tokens("flatten to one", lambda x: x.flatten(1), reads=64)
image("flatten channels and space", lambda x: x.flatten(1)[..., None, None], reads=1024)
tokens("reshape to heads and back", lambda x: x.reshape(2, 4, -1, 4).softmax(2).reshape(x.shape))
tokens("heads and width swap", lambda x: x.unflatten(-1, (-1, 4)).mT.flatten(-2))
tokens("ravel", lambda x: x.ravel()[None], reads=128)
tokens("reshape_as", lambda x: x.flatten().reshape_as(x))
tokens("a view of another type", lambda x: x.view(x.dtype))
tokens("reshape of what is not contiguous", lambda x: x.mT.reshape(2, -1).unflatten(1, (-1, 4)).mT)
tokens(
    "_reshape_alias", lambda x: aten._reshape_alias(x, [8, x.shape[2]], [x.shape[2], 1]), **stays("`_reshape_alias`")
)
tokens("squeeze and unsqueeze", lambda x: x[:1].squeeze(0).unsqueeze(1))
tokens("squeeze in place", lambda x: x[:1].clone().squeeze_(0), cut={}, left={})
tokens("a literal size", lambda x: x.reshape(2, 4, 16), **stays("literal in the code (`reshape`"))
tokens("space is split off channels", lambda x: x.reshape(2, 8, 8), reads=8, **stays("`reshape`"))
add(
    "two sizes that divide differently",
    lambda: Chain(
        nn.Linear(6, 24), lambda x: x.unflatten(-1, (6, -1)).sum(-1) + x.unflatten(-1, (-1, 6)).sum(-2), nn.Linear(6, 5)
    ),
    numbers(2, 4, 6),
    {},
    left={},
)
add(
    "12 of 64 onto 24 of 32",
    lambda: Chain(
        nn.Linear(6, 64),
        lambda x: x.unflatten(-1, (4, -1)).softmax(-1).flatten(-2).unflatten(-1, (8, -1)).softmax(-1).flatten(-2),
        nn.Linear(64, 5),
    ),
    numbers(2, 4, 6),
    {"first.weight": 0, "last.weight": 1},
)
TWO_PARTS = {"first.weight": 0, "last.weight": 1}


def windows(x: Tensor, size: int = 2, step: int = 1, channels: int | None = None) -> Tensor:
    """Overlapping windows over the places of [examples, places, channels], as strides make them."""
    examples, places, _ = x.shape
    outer, inner, channel = x.stride()
    shape = (examples, (places - size) // step + 1, size, x.shape[-1] if channels is None else channels)
    return x.as_strided(shape, (outer, step * inner, inner, channel))


def overlapping_chunks(x: Tensor) -> Tensor:
    """As Longformer makes them: chunks of two places, then more of them, half a chunk apart."""
    x = x.view(x.shape[0], 2, 2, x.shape[-1])
    (examples, chunks, places, channels), stride = x.shape, list(x.stride())
    stride[1] = stride[1] // 2
    return x.as_strided(size=(examples, 2 * chunks - 1, places, channels), stride=stride)


tokens("as_strided of the same shape", lambda x: x.as_strided(x.shape, x.stride()))
tokens("windows by strides", windows)
tokens(
    "two windows by strides, as long as a weight",
    PerChannel(
        lambda x, s: (
            x.as_strided((x.shape[0], 2, s.shape[0], x.shape[2]), (x.stride(0), x.stride(1), x.stride(1), x.stride(2)))
            * s[:, None]
        ).sum(2),
        3,
    ),
    groups=("first",),
)
tokens("windows by strides, further apart", lambda x: windows(x, 2, 2))
tokens("overlapping chunks by strides", overlapping_chunks)
tokens(
    "heads in windows by strides",
    lambda x: (
        windows(x.unflatten(-1, (-1, 4)).transpose(1, 2).flatten(0, 1))
        .softmax(-1)
        .mean(2)
        .unflatten(0, (x.shape[0], -1))
        .transpose(1, 2)
        .flatten(2)
    ),
    cut=TWO_PARTS,
)
tokens("the first half of the channels by strides", lambda x: windows(x, channels=x.shape[-1] // 2), reads=8, cut={})
tokens(
    "windows over channels", lambda x: windows(x.mT.contiguous(), 2, 1), reads=4, **stays("windows are laid over it")
)
tokens("as_strided with literal strides", lambda x: x.as_strided((2, 2, 16), (64, 32, 1)), **stays("`as_strided`"))


def blocks(x: Tensor, width: int) -> Tensor:
    """Overlapping pairs of places, by strides that are products of sizes."""
    return x.as_strided((x.shape[0], x.shape[1] - 1, 2, width), (x.shape[1] * width, width, width, 1))


tokens("as_strided with strides from sizes", lambda x: blocks(x, x.shape[2]))
tokens("as_strided with a literal as the width", lambda x: blocks(x, 16), **stays("literal in the code (`as_strided`"))
tokens(
    "as_strided with the size of another axis that is as long",
    lambda x: (y := x.repeat(1, 4, 1)).as_strided(y.shape, (y.shape[1] * y.shape[2], y.shape[1], 1)),
    **stays("the model's output keeps its shape"),
)
tokens("as_strided from an offset", lambda x: x.as_strided((2, 2, x.shape[2]), x.stride(), 0), **stays("`as_strided`"))
tokens("strides of another tensor", lambda x: x.as_strided(x.shape, x.clone().stride()), **stays("`as_strided`"))
tokens("strides of what is turned", lambda x: (turned := x.mT).as_strided(turned.shape, turned.stride()).mT)
tokens("strides of every second place", lambda x: (some := x[:, ::2]).as_strided(some.shape, some.stride()), cut={})
tokens("as_strided in place, by strides of another", lambda x: x.clone().as_strided_(x.shape, x.stride()), cut={})


def strided_in_place(x: Tensor, shape: Callable[[Tensor], Any], stride: Callable[[Tensor], Any]) -> Tensor:
    x = x.clone()
    return x.as_strided_(shape(x), stride(x))


tokens("as_strided in place that moves nothing", lambda x: strided_in_place(x, lambda x: x.shape, Tensor.stride))
tokens(
    "as_strided in place that turns",
    lambda x: (
        strided_in_place(
            x, lambda x: (x.shape[0], x.shape[2], x.shape[1]), lambda x: [x.stride(0), x.stride(2), x.stride(1)]
        ).mT
    ),
)
tokens(
    "as_strided in place of fewer places",
    lambda x: strided_in_place(x, lambda x: (x.shape[0], 2, x.shape[2]), lambda x: (4 * x.shape[2], x.shape[2], 1)),
)
tokens(
    "as_strided in place by literals that move nothing",
    lambda x: x.clone().as_strided_((2, 4, 16), (64, 16, 1)),
    **stays("literal in the code (`as_strided_`"),
)
tokens(
    "as_strided in place of every second place, which moves nothing",
    lambda x: x.clone()[:, ::2].as_strided_((2, 2, 16), (64, 32, 1)),
    **stays("`as_strided_`"),
)
tokens("a stride that is asked for", lambda x: x * (1 if x.stride(-1) == 1 else 2) * (x.stride(1) == x.shape[2]))

tokens("permute", lambda x: x.permute(2, 0, 1).exp().permute(1, 2, 0))
tokens("transpose", lambda x: x.transpose(0, 2).exp().transpose(-3, 2))
tokens("swapaxes", lambda x: x.swapaxes(0, 2).exp().swapaxes(2, 0))
tokens(
    "a matrix, turned",
    PerChannel(lambda x, s: F.linear(x, s.t()), 16, 12),
    reads=12,
    cut={**FIRST, "op.scale": 0, "op.scale#2": 1},
    groups=("first", "op"),
)
tokens(
    "a matrix, permuted",
    PerChannel(lambda x, s: F.linear(x, s.permute(1, 0)), 16, 12),
    reads=12,
    cut={**FIRST, "op.scale": 0, "op.scale#2": 1},
    groups=("first", "op"),
)
tokens(
    "numpy_T",
    PerChannel(lambda x, s: F.linear(x, s.T), 16, 12),
    reads=12,
    cut={**FIRST, "op.scale": 0, "op.scale#2": 1},
    groups=("first", "op"),
)
tokens("a vector on the right", PerChannel(lambda x, s: (x @ s)[..., None]), reads=1, cut={**ALONE, "op.scale": 0})
tokens("a vector on the left", PerChannel(lambda x, s: (s @ x.mT)[..., None]), reads=1, cut={**ALONE, "op.scale": 0})
tokens("mT", PerChannel(lambda x, s: x @ s.mT, 2, 12, 16), reads=12, cut={**FIRST, "op.scale": 2, "op.scale#2": 1})
tokens(
    "adjoint",
    PerChannel(lambda x, s: x @ s.adjoint(), 2, 12, 16),
    reads=12,
    cut={**FIRST, "op.scale": 2, "op.scale#2": 1},
)
tokens("transpose in place", lambda x: x.clone().transpose_(1, 2).mT, cut={}, left={})

tokens("expand", PerChannel(lambda x, s: x * s.expand(x.shape)), cut=SCALE)
tokens("expand in front", PerChannel(lambda x, s: x * s.expand(2, 4, -1)), cut=SCALE)
tokens("expand one channel", lambda x: x + x[..., :1].expand(-1, -1, x.shape[-1]), cut={}, left={})
tokens("expand a mean", lambda x: x + x.mean(-1, keepdim=True).expand(-1, -1, x.shape[-1]))
tokens(
    "expand to a literal size",
    lambda x: x + x.mean(-1, keepdim=True).expand(-1, -1, 16),
    **stays("literal in the code (`expand`"),
)
tokens("repeat channels", lambda x: x.repeat(1, 1, 2), reads=32)
tokens("tile", lambda x: x.tile(2), reads=32)
tokens("repeat a mean", lambda x: x + x.mean(-1, keepdim=True).repeat(1, 1, x.shape[-1]))
tokens("repeat one place over all", lambda x: x + (y := x[:, :1]).repeat(1, x.shape[1], x.shape[2] // y.shape[2]))
tokens("repeat to a literal size", lambda x: x + x.mean(-1, keepdim=True).repeat(1, 1, 16), **stays("(`repeat`"))
tokens("repeat_interleave channels", lambda x: x.repeat_interleave(2, -1), reads=32)
tokens("repeat_interleave space", lambda x: x.repeat_interleave(3, 1))
tokens("repeat_interleave by a tensor", lambda x: x.repeat_interleave(torch.tensor([1, 0, 2, 1]), 1), cut={}, left={})
tokens("repeat_interleave of all", lambda x: x.repeat_interleave(2)[None], reads=256, cut={}, left={})


class Parallel(nn.Module):
    """Two layers side by side, then a function of both."""

    def __init__(
        self, function: Callable[[Tensor, Tensor], Tensor], reads: int, widths: tuple[int, int] = (16, 16)
    ) -> None:
        super().__init__()
        self.left, self.right = (nn.Conv1d(3, width, 1) for width in widths)
        self.function, self.last = function, nn.Conv1d(reads, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.left(x), self.right(x)))


SIDES = {"left.weight": 0, "right.weight": 0, "last.weight": 1}
for name, joined in {"cat": torch.cat, "concat": torch.concat, "concatenate": torch.concatenate}.items():
    add(
        f"{name} of channels",
        lambda f=joined: Parallel(lambda a, b: f([a, b], 1), 24, (16, 8)),
        numbers(2, 3, 6),
        SIDES,
        groups=("left", "right"),
    )
add("cat of space", lambda: Parallel(lambda a, b: torch.cat([a, b], -1), 16), numbers(2, 3, 6), SIDES)
add("cat of the same twice", lambda: Parallel(lambda a, b: torch.cat([a, b, a.exp()], 1), 48), numbers(2, 3, 6), SIDES)
add(
    "cat with nothing",
    lambda: Parallel(lambda a, b: torch.cat([torch.zeros(0), a + b], 1), 16),
    numbers(2, 3, 6),
    SIDES,
)
add(
    "cat with an input",
    lambda: Chain(nn.Conv1d(3, 16, 1), lambda x: torch.cat([x, torch.ones(2, 2, 6)], 1), nn.Conv1d(18, 5, 1)),
    numbers(2, 3, 6),
    {"first.weight": 0},
)
add("stack", lambda: Parallel(lambda a, b: torch.stack([a, b]).amax(0), 16), numbers(2, 3, 6), SIDES)
add(
    "stack behind channels",
    lambda: Parallel(lambda a, b: torch.stack([a, b], 2).flatten(1, 2), 32),
    numbers(2, 3, 6),
    SIDES,
)
add(
    "stack in front of channels",
    lambda: Parallel(lambda a, b: torch.stack([a, b], 1).flatten(1, 2), 32),
    numbers(2, 3, 6),
    SIDES,
)


class Sliced(nn.Module):
    """Code that knows where to cut: the bounds are attributes, and follow."""

    def __init__(self, function: Callable[[Tensor, int], Tensor], reads: int = 16) -> None:
        super().__init__()
        self.first, self.last, self.at = nn.Linear(6, 16), nn.Linear(reads, 5), 8
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x), self.at))


def sliced(
    name: str,
    function: Callable[[Tensor, int], Tensor],
    reads: int = 16,
    cut: Mapping[str, int] = TWO_PARTS,
    **more: Any,
) -> None:
    add(name, lambda: Sliced(function, reads), numbers(2, 4, 6), cut, **more)


sliced("halves swap", lambda x, n: torch.cat([x[..., n:], x[..., :n]], -1))
sliced("one half gates the other", lambda x, n: x[..., :n] * x[..., n:].sigmoid(), 8)
sliced("narrow", lambda x, n: x.narrow(-1, 0, n) + x.narrow(-1, n, n).exp(), 8)
sliced("narrow from the end", lambda x, n: x.narrow(-1, 0, n) + x.narrow(-1, -8, n).exp(), 8, {}, left={})
sliced("split by attribute", lambda x, n: torch.add(*x.split(n, -1)), 8)
sliced("split into listed parts", lambda x, n: torch.cat(x.split([n, n], -1)[::-1], -1))
sliced("split_with_sizes", lambda x, n: torch.cat(x.split_with_sizes([n, n], -1)[::-1], -1))
tokens("a literal slice", lambda x: torch.cat([x[..., 8:], x[..., :8].exp()], -1), cut={}, left={})
tokens(
    "a slice of half the width",
    lambda x: x[..., : x.shape[-1] // 2] + x[..., x.shape[-1] // 2 :].exp(),
    reads=8,
    cut=TWO_PARTS,
)
tokens("a slice of space", lambda x: x[:, 1:3])
tokens("a slice from the end", lambda x: x[:, -2:])
tokens("a slice of all", lambda x: x[:, :, :100])
tokens("narrow over space", lambda x: x.narrow(1, 1, 2))
tokens("every second channel", lambda x: x[..., ::2] + x[..., 1::2].exp(), reads=8, cut=TWO_PARTS)
tokens("every third channel", lambda x: x[..., ::3], reads=6, **stays("`slice`"))
tokens("every second position", lambda x: x[:, ::2])
tokens("every third position", lambda x: x[:, ::3])
tokens("every fourth channel", lambda x: x[..., ::4] * x.mean(-1, keepdim=True), reads=4, cut=TWO_PARTS)
tokens("one channel by a slice", lambda x: x[..., :1] + x[..., 15:], reads=1, cut={}, left={"first": ""})
tokens("one channel by its number", lambda x: x[..., 3:4] + x.mean(-1, keepdim=True), reads=1, cut={}, left={})
tokens("chunk", lambda x: torch.mul(*x.chunk(2, -1)), reads=8, cut=TWO_PARTS)
tokens("chunk into four", lambda x: torch.cat(x.chunk(4, -1)[::-1], -1), cut=TWO_PARTS)
tokens("unsafe_chunk", lambda x: torch.mul(*x.unsafe_chunk(2, -1)), reads=8, cut=TWO_PARTS)
tokens("unsafe_split", lambda x: torch.mul(*x.unsafe_split(x.shape[-1] // 2, -1)), reads=8, cut=TWO_PARTS)
tokens(
    "unsafe_split_with_sizes",
    lambda x: torch.mul(*x.unsafe_split_with_sizes([x.shape[-1] // 2] * 2, -1)),
    reads=8,
    cut={},
    left={},
)
tokens("chunk of space", lambda x: torch.mul(*x.chunk(2, 1)))
tokens("chunk into unequal pieces", lambda x: torch.cat(x.chunk(3, -1)[::-1], -1), **stays("unequal pieces"))
image("chunk of space into unequal pieces", lambda x: torch.cat(x.chunk(3, 2)[::-1], 2))
tokens("chunk into one", lambda x: x.chunk(1, -1)[0])
tokens("chunk into single channels", lambda x: sum(x.chunk(16, -1)), reads=1, **stays("the number of pieces stays"))
tokens("tensor_split", lambda x: torch.mul(*x.tensor_split(2, -1)), reads=8, cut=TWO_PARTS)
tokens(
    "tensor_split into pieces that change places", lambda x: torch.cat(x.tensor_split(4, -1)[::-1], -1), cut=TWO_PARTS
)
tokens("tensor_split into unequal pieces", lambda x: torch.cat(x.tensor_split(3, -1)[::-1], -1), **stays("unequal"))
tokens("tensor_split into single channels", lambda x: sum(x.tensor_split(16, -1)), reads=1, cut={}, left={"first": ""})
tokens("tensor_split of space", lambda x: torch.cat(x.tensor_split((1, -1), 1)[::-1], 1))
tokens("tensor_split of space into unequal pieces", lambda x: torch.cat(x.tensor_split(3, 1)[::-1], 1))
tokens("tensor_split at a literal", lambda x: torch.cat(x.tensor_split([8], dim=-1)[::-1], -1), cut={}, left={})
tokens("tensor_split at a tensor", lambda x: x.tensor_split(torch.tensor([1, 3]), 1)[1], cut={})
tokens(
    "tensor_split of channels at a tensor", lambda x: x.tensor_split(torch.tensor([8]), 2)[1], reads=8, cut={}, left={}
)
sliced("tensor_split at an attribute", lambda x, n: torch.cat(x.tensor_split(indices=(n,), dim=-1)[::-1], -1))
tokens("dsplit", lambda x: torch.mul(*x.dsplit(2)), reads=8, cut=TWO_PARTS)
tokens("dsplit into pieces that change places", lambda x: torch.cat(torch.dsplit(x, 4)[::-1], -1), cut=TWO_PARTS)
tokens("dsplit at a literal", lambda x: torch.cat(torch.dsplit(x, [8])[::-1], -1), cut={}, left={})
sliced("dsplit at an attribute", lambda x, n: torch.cat(x.dsplit((n,))[::-1], -1))
tokens("hsplit of space", lambda x: torch.mul(*x.hsplit(2)))
tokens("hsplit", lambda x: torch.mul(*x.mT.hsplit(2)).mT, reads=8, cut=TWO_PARTS)
tokens("hsplit of a vector", lambda x: torch.mul(*x[0, 0].hsplit(2)), reads=8, cut=TWO_PARTS)
tokens("vsplit", lambda x: torch.mul(*x.permute(2, 0, 1).vsplit(2)).permute(1, 2, 0), reads=8, cut=TWO_PARTS)
tokens(
    "vsplit into pieces that change places",
    lambda x: torch.cat(x.permute(2, 0, 1).vsplit(4)[::-1]).permute(1, 2, 0),
    cut=TWO_PARTS,
)
tokens("hsplit into pieces that change places", lambda x: torch.cat(x.mT.hsplit(4)[::-1], 1).mT, cut=TWO_PARTS)
tokens("vsplit of space", lambda x: torch.cat(x.transpose(0, 1).vsplit((1,))[::-1]).transpose(0, 1))
tokens("select over space", lambda x: x[:, 2])
tokens("select a channel", lambda x: x[..., 3], reads=4, **stays("a coordinate is picked by its number (`select`"))
image("select behind channels", lambda x: x[..., 2][..., None])
tokens("unbind space", lambda x: x.unbind(1)[0] * x.unbind(1)[3])
tokens(
    "unbind channels",
    lambda x: torch.stack(x.unbind(-1)[::2], -1),
    reads=8,
    **stays("it is taken apart (`unbind`"),
)
tokens(
    "query, key and value of one layer",
    lambda x: torch.mul(*x.unflatten(-1, (2, -1)).unbind(-2)),
    reads=8,
    cut=TWO_PARTS,
)

tokens("roll space", lambda x: x.roll(1, 1))
tokens("roll channels", lambda x: x + 2 * x.roll(3, -1).exp(), cut={}, left={})
tokens("roll channels away", lambda x: x.roll(3, -1), cut={})
tokens("roll channels back", lambda x: x.roll(-3, -1), cut={})
tokens("roll all", lambda x: x.roll(3), **stays("`roll`"))
tokens("roll space twice", lambda x: x.roll((1, 1), (0, 1)))
sliced("roll by half", lambda x, n: x.roll(n, -1))
sliced("roll back by half", lambda x, n: x.roll(-n, -1))
tokens("flip channels", lambda x: x.flip(-1))
tokens("flip channels onto themselves", lambda x: x + x.flip(-1).exp(), cut=TWO_PARTS)
tokens("flip space", lambda x: x.flip(0, 1))

tokens("pad channels", lambda x: F.pad(x, (2, 1)), reads=19, cut={"first.weight": 0})
tokens("pad space", lambda x: F.pad(x, (0, 0, 2, 1)))
tokens(
    "pad space, and normalise pairs of places",  # as Swin merges patches of an odd grid
    lambda x: F.layer_norm(pairs := F.pad(x[:, 1:], (0, 0, 0, 1)).unflatten(1, (2, 2)).flatten(2), pairs.shape[-1:]),
    reads=32,
)
tokens("crop channels", lambda x: F.pad(x, (-1, 0)), reads=15, **stays("cropped (`constant_pad_nd`"))
tokens("crop space", lambda x: F.pad(x, (0, 0, -1, 2)))
tokens(
    "pad a shortcut",
    PerChannel(lambda x, s: x + F.pad(x[..., : x.shape[-1] // 2], (x.shape[-1] // 4, x.shape[-1] // 4))),
    cut={},
    left={},
)
for n, (base, places) in {1: (line, 2), 2: (image, 4), 3: (volume, 6)}.items():
    for mode in ("reflect", "replicate"):
        base(f"{mode} padding, {n} axes", lambda x, m=mode, p=places: F.pad(x, (1,) * p, mode=m))
tokens(
    "reflect channels", lambda x: F.pad(x, (1, 1), mode="reflect"), reads=18, **stays("padded with its own neighbours")
)
tokens("unfold space", lambda x: x.unfold(1, 2, 1).sum(-1))
tokens("unfold channels", lambda x: x.unfold(2, 2, 2).sum(-1), reads=8, **stays("windows are laid over it (`unfold`"))
tokens("an operator without a rule", lambda x: torch.linalg.qr(x)[0], reads=4, **stays("no rule for this operator"))
