"""Depthwise convolutions in a dense kernel of our own: torch's would change the layout of its input and back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from secateur.base import UsageError
from secateur.sparse import native
from secateur.sparse.geometry import Geometry
from secateur.sparse.native import ACTIVATIONS, Depthwise
from secateur.sparse.packed import lies_flat
from secateur.sparse.prepared import fitting, prepared, ready

if TYPE_CHECKING:
    from secateur.sparse.dense import DenseConv2d


def depthwise_conv2d(layer: DenseConv2d, x: Tensor, residual: Tensor | None) -> Tensor:
    """What the layer computes; it has one group for each input channel, and padding in numbers."""
    x = ready(x)
    addresses = layer.weight.data_ptr(), None if layer.bias is None else layer.bias.data_ptr()
    call = prepared(layer, x.shape, addresses, lambda shape: DepthwiseCall(layer, shape))
    output = x.new_empty(call.output_shape)
    residual = fitting(residual, output)
    added = None if residual is None else residual.data_ptr()
    native.run_depthwise(call.part, x.data_ptr(), added, output.data_ptr())
    return output


class DepthwiseCall:
    """A depthwise layer that is ready for inputs of one shape."""

    def __init__(self, layer: DenseConv2d, shape: torch.Size) -> None:
        weight, bias, window = layer.weight, layer.bias, layer.window
        if not all(lies_flat(each) and each.dtype == torch.float32 for each in layer.buffers()):
            raise UsageError("A depthwise layer is not float32 on the CPU any more; make the engine again.")
        if len(shape) != 4 or shape[1] != window.groups:
            raise UsageError(f"The input has the shape {tuple(shape)}, but the layer takes {window.groups} channels.")
        outputs, kernel = weight.shape[0], (weight.shape[2], weight.shape[3])
        geometry = Geometry((shape[0], shape[1], shape[2], shape[3]), 1, kernel, window)
        plain = kernel == (3, 3) and window.padding == window.dilation == (1, 1)
        fits = window.stride == (1, 1) or (window.stride == (2, 2) and shape[3] % 2 == 0)
        self.output_shape = shape[0], outputs, geometry.out_height, geometry.out_width
        weights = weight.data_ptr(), None if bias is None else bias.data_ptr()
        sizes = math.prod(kernel), shape[0], outputs, outputs // window.groups
        rows = geometry.out_height, geometry.out_width, geometry.columns.row_stride
        how = ACTIVATIONS.index(layer.activation), window.stride[0] if plain and fits else 0
        self.part = Depthwise(geometry.margins, *weights, None, None, geometry.columns.offsets, *sizes, *rows, *how)
        self._held = geometry, weight, bias  # as long as their addresses are known here
