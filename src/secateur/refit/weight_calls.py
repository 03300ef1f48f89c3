"""Calls that contract something with a weight, whichever operator computes them, in one form:

    output[g, m, o] = sum over i of read[g, m, i] * weight[g, o, i] + bias[g, o]

A linear layer has one group g, and its positions m are the examples and all axes in between. A convolution reads
patches: i runs over input channels and the kernel, m over examples and places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, eq=False)
class WeightCall:
    weight: Tensor
    """As the operator takes it: mostly a view of a parameter."""
    bias: Tensor | None
    """Of shape (groups * outputs)."""
    read: Tensor
    """What is contracted with the weight."""
    run: Callable[[], Tensor]
    """The call itself, with the weight as it is then."""
    positions: int
    entries: Callable[[Tensor], Tensor]
    """Brings something of the weight's shape to (groups, outputs, inputs)."""
    reads_at: Callable[[Tensor], Tensor]
    """What is read at some positions: (groups, positions, inputs)."""
    outputs_at: Callable[[Tensor, Tensor], Tensor]
    """Of an output, what stands at some positions: (positions, groups * outputs)."""
    by_output: Callable[[Tensor], Tensor]
    """Brings a number for each of groups * outputs to a shape that the weight can be multiplied with."""


def linear(read: Tensor, weight: Tensor, bias: Tensor | None, run: Callable[[], Tensor]) -> WeightCall:
    """`weight` is (outputs, inputs), and the last axis is read."""
    return WeightCall(
        weight,
        bias,
        read,
        run,
        positions=prod(read.shape[:-1]),
        entries=lambda tensor: tensor[None],
        reads_at=lambda at: read.reshape(-1, read.shape[-1])[at][None],
        outputs_at=lambda output, at: output.reshape(-1, output.shape[-1])[at],
        by_output=lambda numbers: numbers[:, None],
    )


def product(left: Tensor, right: Tensor, bias: Tensor | None, run: Callable[[], Tensor]) -> WeightCall:
    """`left @ right`, of three axes each, with the weight on the right: (groups, inputs, outputs).

    A weight that is the same for all groups, as `torch.matmul` makes of a matrix, has one.
    """
    outputs = right.shape[2]
    if right.stride(0) == 0 or len(right) == 1:
        right, left = right[:1], left.reshape(1, -1, left.shape[2])
    groups = len(right)
    return WeightCall(
        right,
        bias,
        left,
        run,
        positions=left.shape[1],
        entries=lambda tensor: tensor.transpose(1, 2),
        reads_at=lambda at: left[:, at],
        outputs_at=lambda output, at: output.reshape(groups, -1, outputs)[:, at].transpose(0, 1).flatten(1),
        by_output=lambda numbers: numbers.reshape(groups, 1, outputs),
    )


def from_the_left(left: Tensor, right: Tensor, run: Callable[[], Tensor]) -> WeightCall:
    """`left @ right` with the weight on the left: (groups, outputs, inputs)."""
    turned = product(right.transpose(1, 2), left.transpose(1, 2), None, run)
    return replace(
        turned,
        outputs_at=lambda output, at: turned.outputs_at(
            (output[None] if output.dim() == 2 else output).transpose(1, 2), at
        ),
    )


def convolution(
    run: Callable[[], Tensor],
    read: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> WeightCall:
    kernel = weight.shape[2:]
    reach = [gap * (size - 1) for gap, size in zip(dilation, kernel, strict=True)]
    pads = [(pad, pad) for pad in padding]
    sizes: Sequence[int] = read.shape[2:]
    if transposed:  # the same as a plain one with the kernel turned round, on an input with zeros in between
        pads = [(r - p, r - p + more) for r, p, more in zip(reach, padding, output_padding, strict=True)]
        spread, stride = stride, [1] * len(kernel)
        sizes = [(size - 1) * step + 1 for size, step in zip(sizes, spread, strict=True)]
    along = zip(sizes, pads, reach, stride, strict=True)
    places = (len(read), *((size + sum(pad) - r - 1) // step + 1 for size, pad, r, step in along))

    @cache
    def windows() -> Tensor:
        source = _spread(read, sizes, spread) if transposed else read
        return _windows(source, kernel, stride, pads, dilation)

    def reads_at(at: Tensor) -> Tensor:
        patches = _at(windows(), at, places)  # (positions, channels, *kernel)
        return patches.reshape(len(at), groups, -1).transpose(0, 1)

    def entries(tensor: Tensor) -> Tensor:
        by_group = tensor.reshape(groups, -1, *tensor.shape[1:])
        if transposed:
            by_group = by_group.transpose(1, 2).flip(list(range(3, by_group.dim())))
        return by_group.flatten(2)

    def by_output(numbers: Tensor) -> Tensor:
        if transposed:  # its weight begins with inputs
            inputs = len(weight) // groups
            numbers = numbers.reshape(groups, 1, -1).expand(-1, inputs, -1).flatten(0, 1)
            return numbers.reshape(*numbers.shape, *(1 for _ in kernel))
        return numbers.reshape(-1, 1, *(1 for _ in kernel))

    return WeightCall(
        weight,
        bias,
        read,
        run,
        positions=prod(places),
        entries=entries,
        reads_at=reads_at,
        outputs_at=lambda output, at: _at(output.movedim(1, -1), at, places),
        by_output=by_output,
    )


def _at(tensor: Tensor, numbers: Tensor, places: tuple[int, ...]) -> Tensor:
    """What stands at some of the places that the first axes of the tensor are."""
    at: tuple[Tensor, ...] = torch.unravel_index(numbers, places)
    return tensor[at]


def _windows(
    read: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    pads: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> Tensor:
    """A view: (examples, *places, channels, *kernel)."""
    flat = [pad for pair in reversed(pads) for pad in pair]
    windows = F.pad(read, flat) if any(flat) else read
    for axis, (size, step, gap) in enumerate(zip(kernel, stride, dilation, strict=True), start=2):
        windows = windows.unfold(axis, gap * (size - 1) + 1, step)[..., ::gap]
    return windows.movedim(1, 1 + len(kernel))


def _spread(read: Tensor, sizes: Sequence[int], steps: Sequence[int]) -> Tensor:
    """With zeros between its places."""
    spread = read.new_zeros(*read.shape[:2], *sizes)
    inside = spread
    for axis, step in enumerate(steps, start=2):
        inside = inside[(slice(None),) * axis + (slice(None, None, step),)]
    inside.copy_(read)
    return spread
