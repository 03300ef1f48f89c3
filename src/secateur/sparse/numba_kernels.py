"""Sparse layers where there was no compiler, through numba: slower than the compiled kernels, and in one thread."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from secateur.sparse.dense import ACTIVATE
from secateur.sparse.packed import PackedMatrix

if TYPE_CHECKING:
    from secateur.sparse.layers import SparseConv2d, SparseLinear

_TILE = 64


class LinearCall:
    def __init__(self, layer: SparseLinear, shape: torch.Size) -> None:
        self.output_shape = (*shape[:-1], layer.matrix.rows)
        self._parts = _parts(layer.matrix)
        self._bias, self._activation = layer.bias, layer.activation

    def __call__(self, x: Tensor, residual: Tensor | None, output: Tensor) -> None:
        examples = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        sums = np.zeros((self.output_shape[-1], len(examples)), np.float32)
        _multiply(*self._parts, examples.T.contiguous().numpy(), sums)
        output.copy_(torch.from_numpy(sums).T.reshape(output.shape))
        _finish(output, self._bias, residual, self._activation)


class ConvolutionCall:
    def __init__(self, layer: SparseConv2d, shape: torch.Size) -> None:
        self._window = {
            "kernel_size": layer.kernel,
            "dilation": layer.window.dilation,
            "padding": layer.window.margins,
            "stride": layer.window.stride,
        }
        matrices = layer.groups
        size = layer.window.output_size((shape[2], shape[3]), layer.kernel)
        self.output_shape: tuple[int, ...] = (shape[0], matrices[0].rows * len(matrices), *size)
        self._parts = [_parts(matrix) for matrix in matrices]
        self._bias = None if layer.bias is None else layer.bias[:, None, None]
        self._activation = layer.activation

    def __call__(self, x: Tensor, residual: Tensor | None, output: Tensor) -> None:
        for image, filled in zip(x, output, strict=True):
            inputs = F.unfold(image, **self._window).chunk(len(self._parts))
            for parts, group, sums in zip(self._parts, inputs, filled.chunk(len(self._parts)), strict=True):
                _multiply(*parts, group.numpy(), sums.zero_().flatten(1).numpy())
        _finish(output, self._bias, residual, self._activation)


def _parts(matrix: PackedMatrix) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], int]:
    starts, indices, values = (part.numpy() for part in (matrix.starts, matrix.indices, matrix.values))
    return starts, matrix.rows_walked(), indices, values, matrix.panel_width


def _finish(output: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str) -> None:
    if bias is not None:
        output += bias
    if residual is not None:
        output += residual
    ACTIVATE[activation](output)


def _add_product(
    starts: Any, rows_walked: Any, indices: Any, values: Any, panel_width: int, inputs: Any, sums: Any
) -> None:
    """Adds a packed matrix times `inputs` to `sums`, by tiles of columns that are copied into the cache."""
    columns, block = inputs.shape[1], values.shape[1]
    tile = np.empty((min(panel_width, inputs.shape[0]), _TILE), np.float32)
    for first in range(0, columns, _TILE):
        width = min(_TILE, columns - first)
        for panel in range(starts.shape[0]):
            rows = min(panel_width, inputs.shape[0] - panel * panel_width)
            tile[:rows, :width] = inputs[panel * panel_width : panel * panel_width + rows, first : first + width]
            for walked in range(starts.shape[1] - 1):
                row = rows_walked[panel, walked]
                for stored in range(starts[panel, walked], starts[panel, walked + 1]):
                    line = tile[indices[stored]]
                    for place in range(block):
                        weight, sum_ = values[stored, place], sums[row * block + place, first : first + width]
                        for i in range(width):
                            sum_[i] += weight * line[i]


_multiply: Any = njit(nogil=True)(_add_product)
