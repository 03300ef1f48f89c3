"""What every call of a layer has in common: its inputs are checked, and what depends on their shape is made once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from secateur.base import UsageError

Made = TypeVar("Made")

_MOST_SHAPES = 64
# Not in the layers themselves: these are addresses, of no use in a copy of a layer.
_calls: WeakKeyDictionary[nn.Module, dict[Any, Any]] = WeakKeyDictionary()


def prepared(layer: nn.Module, shape: torch.Size, address: Hashable, prepare: Callable[[torch.Size], Made]) -> Made:
    """From an earlier call with the same shape and the buffers where they were."""
    known = _calls.get(layer)
    if known is None:
        known = _calls.setdefault(layer, {})
    call: Made | None = known.get((shape, address))
    if call is None:
        if len(known) >= _MOST_SHAPES:
            known.clear()
        call = known[shape, address] = prepare(shape)
    return call


def address(module: nn.Module | None, buffer: str) -> int:
    """Looked up where modules keep their buffers: as attributes, they take longer than a small layer."""
    assert module is not None
    tensor = module._buffers[buffer]
    return 0 if tensor is None else tensor.data_ptr()


def ready(x: Tensor) -> Tensor:
    if x.dtype != torch.float32 or not x.is_cpu:
        raise UsageError(f"Sparse layers take float32 on the CPU, not {x.dtype} on {x.device}.")
    return (x.detach() if x.requires_grad else x).contiguous()


def fitting(residual: Tensor | None, output: Tensor) -> Tensor | None:
    if residual is None:
        return None
    if residual.shape != output.shape:
        raise UsageError(f"A residual of {tuple(residual.shape)} cannot be added to {tuple(output.shape)}.")
    return ready(residual)
