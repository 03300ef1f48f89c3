"""Layers whose weights are stored without their zeros, for inference on a CPU in float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from secateur.errors import UsageError
from secateur.sparse import native
from secateur.sparse.geometry import Geometry
from secateur.sparse.native import ACTIVATIONS, Columns, Prepared
from secateur.sparse.packed import PackedMatrix

__all__ = ["SparseConv2d", "SparseLinear"]


class SparseLinear(nn.Module):
    """A linear layer, with what follows it: `activation(x @ weight.T + bias + residual)`."""

    bias: Tensor | None

    def __init__(self, matrix: PackedMatrix, bias: Tensor | None, activation: str = "none") -> None:
        super().__init__()
        self.matrix = matrix
        self.activation = _known(activation)
        self.register_buffer("bias", bias)

    @classmethod
    def pack(
        cls,
        weight: Tensor,
        bias: Tensor | None,
        *,
        block: int = 1,
        activation: str = "none",
        one_example: bool = False,
    ) -> SparseLinear:
        """From a weight of shape [outputs, inputs]; `one_example` for inputs that come one by one."""
        return cls(PackedMatrix.pack(weight, block, one_example=one_example), _plain(bias), activation)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        x = _ready(x)
        call = _prepared(self, x.shape, self.matrix.values.data_ptr(), self._prepare)
        output = x.new_empty(call.output_shape)
        added = _fitting(residual, output)
        native.run(call.parts[0], x.data_ptr(), None if added is None else added.data_ptr(), output.data_ptr())
        return output

    def _prepare(self, shape: torch.Size) -> _Call:
        matrix = self.matrix
        if shape[-1:] != (matrix.columns,):
            raise UsageError(f"The input has the shape {tuple(shape)}, but the layer takes {matrix.columns} features.")
        columns = Columns(None, math.prod(shape[:-1]), matrix.columns, 0, 0, 0, None, 0)
        part = native.prepare(matrix, columns, stride=matrix.rows, bias=self.bias, activation=self.activation)
        return _Call((*shape[:-1], matrix.rows), (part,))


class SparseConv2d(nn.Module):
    """A convolution with zero padding, with what follows it: `activation(conv2d(x) + bias + residual)`."""

    bias: Tensor | None

    def __init__(
        self,
        matrices: list[PackedMatrix],
        bias: Tensor | None,
        *,
        kernel: tuple[int, int],
        stride: tuple[int, int],
        padding: tuple[int, int],
        dilation: tuple[int, int],
        activation: str = "none",
    ) -> None:
        super().__init__()
        self.matrices = nn.ModuleList(matrices)
        self.kernel, self.stride, self.padding, self.dilation = kernel, stride, padding, dilation
        self.activation = _known(activation)
        self.register_buffer("bias", bias)

    @classmethod
    def pack(
        cls,
        weight: Tensor,
        bias: Tensor | None,
        *,
        stride: tuple[int, int],
        padding: tuple[int, int],
        dilation: tuple[int, int],
        groups: int = 1,
        block: int = 1,
        activation: str = "none",
    ) -> SparseConv2d:
        """From a weight of shape [outputs, inputs / groups, height, width]."""
        matrices = [PackedMatrix.pack(part.flatten(1), block) for part in weight.detach().chunk(groups)]
        kernel = weight.shape[2], weight.shape[3]
        return cls(
            matrices,
            _plain(bias),
            kernel=kernel,
            stride=stride,
            padding=padding,
            dilation=dilation,
            activation=activation,
        )

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if x.ndim == 3:  # a single image
            return self(x[None], None if residual is None else residual[None])[0]  # type: ignore[no-any-return]
        x = _ready(x)
        first: Any = self.matrices[0]
        call = _prepared(self, x.shape, first.values.data_ptr(), self._prepare)
        output = x.new_empty(call.output_shape)
        data, added = x, _fitting(residual, output)
        geometry = call.geometry
        assert geometry is not None
        if not geometry.as_it_is:
            data = x.new_empty(geometry.floats)
            native.add_margins(geometry.margins, x.data_ptr(), data.data_ptr())
        # From one group to the next, in bytes.
        step_in = 4 * geometry.plane * (x.shape[1] // len(call.parts))
        step_out = 4 * geometry.out_height * geometry.out_width * first.rows
        for i, part in enumerate(call.parts):
            shifted = None if added is None else added.data_ptr() + i * step_out
            native.run(part, data.data_ptr() + i * step_in, shifted, output.data_ptr() + i * step_out)
        return output

    def _prepare(self, shape: torch.Size) -> _Call:
        matrices: list[Any] = list(self.matrices)
        rows, channels = matrices[0].rows, matrices[0].columns // (self.kernel[0] * self.kernel[1])
        if len(shape) != 4 or shape[1] != channels * len(matrices):
            raise UsageError(
                f"The input has the shape {tuple(shape)}, but the layer takes {channels * len(matrices)} channels."
            )
        geometry = Geometry(tuple(shape), channels, self.kernel, self.stride, self.padding, self.dilation)  # type: ignore[arg-type]
        output_shape = shape[0], rows * len(matrices), geometry.out_height, geometry.out_width
        parts = [
            native.prepare(
                matrix,
                geometry.columns,
                stride=math.prod(output_shape[1:]),
                bias=None if self.bias is None else self.bias[i * rows :],
                activation=self.activation,
            )
            for i, matrix in enumerate(matrices)
        ]
        return _Call(output_shape, tuple(parts), geometry)


@dataclass(frozen=True)
class _Call:
    """What all calls of a layer with inputs of one shape share; a part for each group."""

    output_shape: tuple[int, ...]
    parts: tuple[Prepared, ...]
    geometry: Geometry | None = None


_MOST_SHAPES = 64
# Not in the layers themselves: these are addresses, of no use in a copy of a layer.
_calls: WeakKeyDictionary[nn.Module, dict[Any, _Call]] = WeakKeyDictionary()


def _prepared(layer: nn.Module, shape: torch.Size, address: int, prepare: Callable[[torch.Size], _Call]) -> _Call:
    """From an earlier call with the same shape and the buffers where they were."""
    known = _calls.get(layer)
    if known is None:
        known = _calls.setdefault(layer, {})
    call = known.get((shape, address))
    if call is None:
        if len(known) >= _MOST_SHAPES:
            known.clear()
        call = known[shape, address] = prepare(shape)
    return call


def _known(activation: str) -> str:
    if activation not in ACTIVATIONS:
        raise UsageError(f"There is no activation {activation!r}; choose one of {', '.join(ACTIVATIONS)}.")
    return activation


def _plain(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach().float().contiguous()


def _ready(x: Tensor) -> Tensor:
    if x.dtype != torch.float32 or x.device.type != "cpu":
        raise UsageError(f"Sparse layers take float32 on the CPU, not {x.dtype} on {x.device}.")
    return x.detach().contiguous()


def _fitting(residual: Tensor | None, output: Tensor) -> Tensor | None:
    if residual is None:
        return None
    if residual.shape != output.shape:
        raise UsageError(f"A residual of {tuple(residual.shape)} cannot be added to {tuple(output.shape)}.")
    return _ready(residual)
