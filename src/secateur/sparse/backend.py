"""Which kernels the sparse layers run on: those that were compiled with the package, those of numba, or none."""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from secateur.base import UsageError
from secateur.sparse import compiled, native

if TYPE_CHECKING:
    from secateur.sparse.layers import SparseConv2d, SparseLinear

__all__ = ["LayerCall", "convolution_call", "linear_call", "which", "why_unavailable"]


class LayerCall(Protocol):
    """A layer that is ready for inputs of one shape. It fills an output of `output_shape`."""

    output_shape: tuple[int, ...]

    def __call__(self, x: Tensor, residual: Tensor | None, output: Tensor) -> None: ...


def which() -> str | None:
    """The instruction set of the compiled kernels, or `numba`, or None where there are no kernels at all."""
    if native.why_missing() is None:
        return native.instruction_set()
    return "numba" if find_spec("numba") else None


def why_unavailable() -> str | None:
    """None where sparse layers can run; else the reason, to end a sentence with."""
    return None if find_spec("numba") else native.why_missing()


def linear_call(layer: SparseLinear, shape: torch.Size) -> LayerCall:
    call: LayerCall = _kernels().LinearCall(layer, shape)
    return call


def convolution_call(layer: SparseConv2d, shape: torch.Size) -> LayerCall:
    call: LayerCall = _kernels().ConvolutionCall(layer, shape)
    return call


def _kernels() -> ModuleType:
    if native.why_missing() is None:
        return compiled
    if reason := why_unavailable():
        raise UsageError(f"Sparse layers cannot run here: {reason}, or install numba.")
    from secateur.sparse import numba_kernels

    return numba_kernels
