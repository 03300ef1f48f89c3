"""Which kernels the sparse layers run on: those that were compiled with the package, those of numba, or none."""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType
from typing import Protocol

from torch import Tensor

from secateur.base import UsageError
from secateur.sparse import compiled, native


class LayerCall(Protocol):
    """A layer that is ready for inputs of one shape. It fills an output of `output_shape`."""

    output_shape: tuple[int, ...]

    def __call__(self, x: Tensor, residual: Tensor | None, output: Tensor) -> None: ...


def why_unavailable() -> str | None:
    """None where sparse layers can run; else the reason, to end a sentence with."""
    return None if find_spec("numba") else native.why_missing()


def kernels() -> ModuleType:
    """Whose `LinearCall` and `ConvolutionCall` make a layer and a shape into a `LayerCall`."""
    if native.why_missing() is None:
        return compiled
    if reason := why_unavailable():
        raise UsageError(f"Sparse layers cannot run here: {reason}, or install numba.")
    from secateur.sparse import numba_kernels

    return numba_kernels
