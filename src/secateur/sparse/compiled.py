"""What a sparse layer asks of the compiled kernels, prepared once for all inputs of one shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from secateur.sparse import native
from secateur.sparse.geometry import Geometry
from secateur.sparse.native import Columns

if TYPE_CHECKING:
    from secateur.sparse.layers import SparseConv2d, SparseLinear


class LinearCall:
    def __init__(self, layer: SparseLinear, shape: torch.Size) -> None:
        matrix = layer.matrix
        self.output_shape = (*shape[:-1], matrix.rows)
        columns = Columns(None, math.prod(shape[:-1]), matrix.columns, 0, 0, 0, None, 0)
        self._part = native.prepare(matrix, columns, stride=matrix.rows, bias=layer.bias, activation=layer.activation)
        self._held = list(layer.buffers())  # as long as their addresses are known here

    def __call__(self, x: Tensor, residual: Tensor | None, output: Tensor) -> None:
        native.run(self._part, x.data_ptr(), None if residual is None else residual.data_ptr(), output.data_ptr())


class ConvolutionCall:
    """With a part for each group."""

    def __init__(self, layer: SparseConv2d, shape: torch.Size) -> None:
        matrices = layer.groups
        rows, groups = matrices[0].rows, len(matrices)
        images, channels, height, width = shape
        geometry = Geometry((images, channels, height, width), channels // groups, layer.kernel, layer.window)
        self._geometry = geometry
        self.output_shape: tuple[int, ...] = shape[0], rows * groups, geometry.out_height, geometry.out_width
        self.parts = [
            native.prepare(
                matrix,
                geometry.columns,
                stride=math.prod(self.output_shape[1:]),
                bias=None if layer.bias is None else layer.bias[i * rows :],
                activation=layer.activation,
            )
            for i, matrix in enumerate(matrices)
        ]
        # From one group to the next, in bytes.
        self._step_in = 4 * geometry.plane * (shape[1] // groups)
        self._step_out = 4 * geometry.out_height * geometry.out_width * rows
        self._held = list(layer.buffers())  # as long as their addresses are known here

    def __call__(self, x: Tensor, residual: Tensor | None, output: Tensor) -> None:
        data = x
        if not self._geometry.as_it_is:
            data = x.new_empty(self._geometry.floats)
            native.add_margins(self._geometry.margins, x.data_ptr(), data.data_ptr())
        for i, part in enumerate(self.parts):
            added = None if residual is None else residual.data_ptr() + i * self._step_out
            native.run(part, data.data_ptr() + i * self._step_in, added, output.data_ptr() + i * self._step_out)
