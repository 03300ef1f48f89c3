"""Depthwise convolutions in a dense kernel of our own: torch's would change the layout of its input and back."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateur.errors import UsageError
from secateur.sparse import native
from secateur.sparse.calls import fitting, prepared, ready
from secateur.sparse.geometry import Geometry
from secateur.sparse.native import ACTIVATIONS, Depthwise
from secateur.sparse.packed import lies_flat

__all__ = ["depthwise_conv2d"]

Pair = tuple[int, int]


@dataclass(frozen=True)
class _Call:
    output_shape: tuple[int, ...]
    depthwise: Depthwise
    geometry: Geometry
    """Holds the numbers that the structure points to."""


def depthwise_conv2d(
    layer: nn.Module,
    x: Tensor,
    residual: Tensor | None,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    activation: str,
) -> Tensor:
    """`activation(conv2d(x) + bias + residual)` with the layer's weight and bias; one group for each input channel."""
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor)
    assert bias is None or isinstance(bias, Tensor)

    def prepare(shape: torch.Size) -> _Call:
        outputs, kernel = weight.shape[0], (weight.shape[2], weight.shape[3])
        if not all(lies_flat(each) and each.dtype == torch.float32 for each in (weight, bias) if each is not None):
            raise UsageError("A depthwise layer is not float32 on the CPU any more; make the engine again.")
        if len(shape) != 4 or shape[1] != groups:
            raise UsageError(f"The input has the shape {tuple(shape)}, but the layer takes {groups} channels.")
        geometry = Geometry((shape[0], shape[1], shape[2], shape[3]), 1, kernel, stride, padding, dilation)
        depthwise = Depthwise(
            geometry.margins,
            weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            None,
            None,
            geometry.columns.offsets,
            math.prod(kernel),
            shape[0],
            outputs,
            outputs // groups,
            geometry.out_height,
            geometry.out_width,
            geometry.columns.row_stride,
            ACTIVATIONS.index(activation),
        )
        return _Call((shape[0], outputs, geometry.out_height, geometry.out_width), depthwise, geometry)

    x = ready(x)
    addresses = weight.data_ptr(), None if bias is None else bias.data_ptr()
    call = prepared(layer, x.shape, addresses, prepare)
    output = x.new_empty(call.output_shape)
    residual = fitting(residual, output)
    added = None if residual is None else residual.data_ptr()
    native.run_depthwise(call.depthwise, x.data_ptr(), added, output.data_ptr())
    return output
