"""Sparse layers at random, and what dense layers make of the same weights in float64."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from secateur.sparse.dense import DenseConv2d
from secateur.sparse.layers import SparseConv2d, SparseLinear
from secateur.sparse.window import Window

__all__ = [
    "ACTIVATIONS",
    "assert_close",
    "convolutions",
    "dense",
    "depthwise_layers",
    "images_for",
    "linears",
    "sparse_weight",
]

ACTIVATIONS = {"none": lambda y: y, "relu": F.relu, "relu6": F.relu6, "gelu": F.gelu}


def sparse_weight(shape: tuple[int, ...], density: float, block: int = 1) -> Tensor:
    """Normal numbers and zeros, in blocks of `block` × 1."""
    kept = torch.rand(shape[0] // block, *shape[1:]) < density
    return torch.where(kept.repeat_interleave(block, 0), torch.randn(shape), 0.0)


def dense(layer: SparseLinear | SparseConv2d, weight: Tensor, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """What the layer should compute, by PyTorch in float64."""
    y = _product(layer, weight, x) if layer.bias is None else _product(layer, weight, x, layer.bias.double())
    y = y if residual is None else y + residual.double()
    return ACTIVATIONS[layer.activation](y)


def assert_close(layer: SparseLinear | SparseConv2d, weight: Tensor, x: Tensor, residual: Tensor | None = None) -> None:
    """Every output within 1e-5 of the sum of the magnitudes that were added up for it."""
    bound = _product(layer, weight.abs(), x.abs(), None if layer.bias is None else layer.bias.double().abs())
    bound = bound if residual is None else bound + residual.double().abs()
    output = layer(x, residual)
    assert output.dtype == torch.float32
    expected = dense(layer, weight, x, residual)
    assert output.shape == expected.shape
    assert ((output.double() - expected).abs() <= 1e-5 * bound + 1e-40).all()


def _product(layer: SparseLinear | SparseConv2d, weight: Tensor, x: Tensor, bias: Tensor | None = None) -> Tensor:
    if isinstance(layer, SparseLinear):
        return F.linear(x.double(), weight.double(), bias)
    return F.conv2d(x.double(), weight.double(), bias, **asdict(layer.window))


@st.composite
def linears(draw: Any) -> tuple[SparseLinear, Tensor, Tensor, Tensor | None]:
    """A layer, its weight, an input and a residual."""
    torch.manual_seed(draw(st.integers(0, 2**32)))
    block = draw(st.sampled_from([1, 4]))
    rows = block * draw(st.integers(1, 40) | st.integers(120, 150))
    columns = draw(st.integers(0, 30) | st.integers(30, 900))
    examples = draw(st.integers(0, 9) | st.integers(10, 200))
    weight = sparse_weight((rows, columns), draw(st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0])), block)
    layer = SparseLinear.pack(
        weight,
        torch.randn(rows) if draw(st.booleans()) else None,
        block=block,
        activation=draw(st.sampled_from(list(ACTIVATIONS))),
        one_example=draw(st.booleans()),
    )
    return layer, weight, torch.randn(examples, columns), torch.randn(examples, rows) if draw(st.booleans()) else None


@st.composite
def convolutions(draw: Any) -> tuple[SparseConv2d, Tensor, Tensor, Tensor | None]:
    """The same for a convolution. The image is at least as large as the kernel, once it has its margins."""
    torch.manual_seed(draw(st.integers(0, 2**32)))
    block, groups = draw(st.sampled_from([1, 4])), draw(st.sampled_from([1, 1, 2, 3]))
    rows, channels = block * draw(st.integers(1, 6) | st.just(140 // block)), draw(st.integers(1, 20))
    kernel, stride, padding, dilation, size = (
        tuple(column)
        for column in zip(*(draw(_along_an_axis()) for _ in range(2)), strict=True)  # height, width
    )
    weight = sparse_weight((groups * rows, channels, *kernel), draw(st.sampled_from([0.0, 0.05, 0.3, 1.0])), block)
    layer = SparseConv2d.pack(
        weight,
        torch.randn(groups * rows) if draw(st.booleans()) else None,
        Window(stride, padding, dilation, groups),
        block=block,
        activation=draw(st.sampled_from(list(ACTIVATIONS))),
    )
    x = torch.randn(draw(st.integers(0, 5)), groups * channels, *size)
    shape = dense(layer, weight, x).shape
    return layer, weight, x, torch.randn(shape) if draw(st.booleans()) else None


@st.composite
def _along_an_axis(draw: Any) -> tuple[int, int, int, int, int]:
    """Sizes of kernel, stride, padding, dilation and image that give an output."""
    kernel, stride, dilation = draw(st.just(3) | st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    padding = draw(st.integers(0, 6))
    reach = dilation * (kernel - 1) + 1
    size = draw(st.integers(max(1, reach - 2 * padding), reach + 20))
    return kernel, stride, padding, dilation, size


@st.composite
def depthwise_layers(draw: Any) -> DenseConv2d:
    """Every other of the most usual kind, for which there are kernels of their own."""
    channels, outputs = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    axes = [draw(_along_an_axis()) for _ in range(2)]
    kernel, stride, padding, dilation, _ = (tuple(column) for column in zip(*axes, strict=True))
    if draw(st.booleans()):
        kernel, padding, dilation = (3, 3), (1, 1), (1, 1)
        stride = draw(st.sampled_from([(1, 1), (2, 2)]))
    weight = torch.randn(channels * outputs, 1, *kernel)
    bias = torch.randn(channels * outputs) if draw(st.booleans()) else None
    conv = DenseConv2d("", weight, bias, Window(stride, padding, dilation, channels))
    conv.activation = draw(st.sampled_from(list(ACTIVATIONS)))
    return conv


@st.composite
def images_for(draw: Any, conv: DenseConv2d) -> tuple[int, int]:
    """Height and width that are large enough."""
    reach = [conv.window.dilation[i] * (conv.weight.shape[2 + i] - 1) + 1 - 2 * conv.window.margins[i] for i in (0, 1)]
    height, width = (draw(st.integers(max(1, least), max(1, least) + 40)) for least in reach)
    return height, width
