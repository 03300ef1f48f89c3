"""Layers whose weights are stored without their zeros, for inference on a CPU in float32."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from secateur.base import SecateurError, UsageError, require_one_of
from secateur.sparse import backend
from secateur.sparse.native import ACTIVATIONS
from secateur.sparse.packed import PackedMatrix, lies_flat
from secateur.sparse.prepared import address, fitting, prepared, ready
from secateur.sparse.window import Pair, Window


class SparseLinear(nn.Module):
    """A linear layer, with what follows it: `activation(x @ weight.T + bias + residual)`."""

    bias: Tensor | None

    def __init__(self, matrix: PackedMatrix, bias: Tensor | None, activation: str = "none") -> None:
        super().__init__()
        self.matrix = matrix
        self.activation = _known(activation)
        self.register_buffer("bias", bias)
        self._check()

    @classmethod
    def pack(
        cls, weight: Tensor, bias: Tensor | None, *, block: int = 1, activation: str = "none", one_example: bool = False
    ) -> SparseLinear:
        """From a weight of shape [outputs, inputs]; `one_example` for inputs that come one by one."""
        return cls(PackedMatrix.pack(weight, block, one_example=one_example), _plain(bias), activation)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        x = ready(x)
        addresses = address(self._modules["matrix"], "values"), address(self, "bias")
        call = prepared(self, x.shape, addresses, self._prepare)
        output = x.new_empty(call.output_shape)
        call(x, fitting(residual, output), output)
        return output

    def _prepare(self, shape: torch.Size) -> backend.LayerCall:
        if shape[-1:] != (self.matrix.columns,):
            raise UsageError(
                f"The input has the shape {tuple(shape)}, but the layer takes {self.matrix.columns} features."
            )
        self._check()
        return cast(backend.LayerCall, backend.kernels().LinearCall(self, shape))

    def _check(self) -> None:
        _require_plain([self.matrix], self.bias)


class SparseConv2d(nn.Module):
    """A convolution with zero padding, with what follows it: `activation(conv2d(x) + bias + residual)`."""

    bias: Tensor | None

    def __init__(
        self, matrices: list[PackedMatrix], bias: Tensor | None, kernel: Pair, window: Window, activation: str = "none"
    ) -> None:
        super().__init__()
        self.matrices = nn.ModuleList(matrices)
        self.kernel, self.window = kernel, window
        self.activation = _known(activation)
        self.register_buffer("bias", bias)
        self._check()

    @property
    def groups(self) -> list[PackedMatrix]:
        """Their matrices."""
        return cast(list[PackedMatrix], list(self.matrices))

    @classmethod
    def pack(
        cls, weight: Tensor, bias: Tensor | None, window: Window, *, block: int = 1, activation: str = "none"
    ) -> SparseConv2d:
        """From a weight of shape [outputs, inputs / groups, height, width]."""
        matrices = [PackedMatrix.pack(part.flatten(1), block) for part in weight.detach().chunk(window.groups)]
        return cls(matrices, _plain(bias), (weight.shape[2], weight.shape[3]), window, activation)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if x.ndim == 3:  # a single image
            return self(x[None], None if residual is None else residual[None])[0]  # type: ignore[no-any-return]
        x = ready(x)
        matrices = cast(nn.Module, self._modules["matrices"])
        addresses = address(matrices._modules["0"], "values"), address(self, "bias")
        call = prepared(self, x.shape, addresses, self._prepare)
        output = x.new_empty(call.output_shape)
        call(x, fitting(residual, output), output)
        return output

    def _prepare(self, shape: torch.Size) -> backend.LayerCall:
        self.require_fitting(shape)
        return cast(backend.LayerCall, backend.kernels().ConvolutionCall(self, shape))

    def require_fitting(self, shape: torch.Size) -> None:
        """Refuses an input of another shape, and buffers that a kernel would misread."""
        channels = self.groups[0].columns // (self.kernel[0] * self.kernel[1]) * len(self.groups)
        if len(shape) != 4 or shape[1] != channels:
            raise UsageError(f"The input has the shape {tuple(shape)}, but the layer takes {channels} channels.")
        self._check()

    def _check(self) -> None:
        how, shapes = self.window, {(matrix.rows, matrix.columns) for matrix in self.groups}
        least = [(self.kernel, 1), (how.stride, 1), (how.padding, 0), (how.dilation, 1)]
        fit = len(shapes) == 1 and how.groups == len(self.groups)
        fit &= all(len(pair) == 2 and all(type(n) is int and n >= limit for n in pair) for pair, limit in least)
        if not fit or next(iter(shapes))[1] % (self.kernel[0] * self.kernel[1]):
            raise SecateurError("A sparse convolution is damaged: its sizes make no sense; pack it again.")
        _require_plain(self.groups, self.bias)


def _known(activation: str) -> str:
    require_one_of("activation", activation, ACTIVATIONS)
    return activation


def _plain(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach().float().contiguous()


def _require_plain(matrices: list[PackedMatrix], bias: Tensor | None) -> None:
    """Refuses what a kernel would misread: the layer may have been moved, or its bias come from a file."""
    values = [matrix.values for matrix in matrices] + ([] if bias is None else [bias])
    if not all(each.dtype == torch.float32 and lies_flat(each) for each in values):
        raise UsageError("A sparse layer runs in float32 on the CPU only; leave its buffers as and where they are.")
    if bias is not None and bias.shape != (sum(matrix.rows for matrix in matrices),):
        raise SecateurError("A sparse layer is damaged: its bias has another size; pack it again.")
