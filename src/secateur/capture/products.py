"""Convolutions and matrix products that nobody computes, in passes of which only the shapes count.

They take most of the time of a pass, and mostly nobody looks at what they give. So the result is zeros, as if all
weights were zero, of the shape and the memory layout that the kernel would give it. What is not certain to be a product
that the kernel accepts is left to the kernel. A pass that looks at values all the same has to be made once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

aten = torch.ops.aten

Shape = tuple[int, ...]


def zeros_for(op: Any, args: Sequence[Any]) -> Tensor | None:
    """Zeros in the place of a product; None where `op` has to run."""
    shape_of = _SHAPES.get(op)
    if shape_of is None or not all(map(_is_plain, args[:3])):
        return None
    with torch._C.DisableTorchFunction():
        shape = shape_of(*args)
        return None if shape is None or 0 in shape else torch.zeros(shape)


def _is_plain(item: Any) -> bool:
    """Whether it is a tensor of numbers on the CPU, or none, as the bias of many layers."""
    if not isinstance(item, Tensor):
        return True
    kind = type(item), item.dtype, item.layout, item.device.type
    return kind in ((Tensor, torch.float32, torch.strided, "cpu"), (nn.Parameter, torch.float32, torch.strided, "cpu"))


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Shape | None:
    axes = x.dim() - 2
    given = zip(stride, padding, dilation, x.shape[2:], weight.shape[2:], strict=False)
    lengths = [(n + 2 * pad - dilate * (kernel - 1) - 1) // step + 1 for step, pad, dilate, n, kernel in given]
    fits = (
        axes in (1, 2)
        and weight.dim() == x.dim()
        and len(lengths) == axes
        and not transposed
        and weight.shape[1] * groups == x.shape[1]
        and weight.shape[0] % groups == 0
        and (bias is None or bias.shape == weight.shape[:1])
        and min(lengths) > 0
        and x.is_contiguous()
        and weight.is_contiguous()
    )
    return (x.shape[0], weight.shape[0], *lengths) if fits else None


def _addmm(bias: Tensor, x: Tensor, weight: Tensor) -> Shape | None:
    shape = _mm(x, weight)
    return shape if shape is not None and bias.shape == shape[1:] else None


def _mm(x: Tensor, weight: Tensor) -> Shape | None:
    return (x.shape[0], weight.shape[1]) if x.shape[1] == weight.shape[0] else None


def _bmm(x: Tensor, other: Tensor) -> Shape | None:
    fits = x.shape[0] == other.shape[0] and x.shape[2] == other.shape[1]
    return (x.shape[0], x.shape[1], other.shape[2]) if fits else None


_SHAPES: dict[Any, Callable[..., Shape | None]] = {
    aten.convolution.default: _convolution,
    aten.addmm.default: _addmm,
    aten.mm.default: _mm,
    aten.bmm.default: _bmm,
}
