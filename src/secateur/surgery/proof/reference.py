"""The reference against which a physically pruned model is proven: the full-size model, with NaN for "removed".

Every removed coordinate of every parameter and buffer of the original model is overwritten with NaN, and the model runs
as its author wrote it. `RemovedIsNaN` makes NaN behave like absence in each operation: sums leave it out, statistics
are taken without it, and what is computed from it alone is removed as well. Nothing of the channel engine takes part,
so its mistakes cannot repeat here. Operations without a rule run as they are: NaN spreads, and the proof fails rather
than passing wrongly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from secateur.base import tensors_in
from secateur.capture import RECURRENT, caches_apart, plain_execution
from secateur.surgery.proof import norms as norms  # registers its rules
from secateur.surgery.proof.absence import RemovedIsNaN
from secateur.surgery.proof.float64 import Float64, lifted


def run_reference(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int = 0) -> Any:
    """The outputs of a float64 model whose removed coordinates are NaN, computed as if those were absent."""
    # Float64 is entered last and thus sees an operation first: RemovedIsNaN gets it in float64 already.
    with RemovedIsNaN():
        return run_float64(model, args, kwargs, seed)


def run_float64(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int = 0) -> Any:
    """The outputs of a float64 model with float64 throughout: the pruned model's side of the proof."""
    args, kwargs = lifted((args, kwargs))
    with plain_execution(), caches_apart(model), _PlainOperations(), Float64(seed):
        return model(*args, **kwargs)


class _PlainOperations(TorchFunctionMode):
    """No kernel that does the work of a whole layer: recurrent layers run on the CPU, which lacks cuDNN's.

    That a function mode is active turns the fast path of attention off, for this thread alone.
    """

    def __torch_function__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if function not in RECURRENT:
            return function(*args, **kwargs or {})
        device = next(tensors_in(args)).device
        return _moved(function(*_moved(args, torch.device("cpu")), **kwargs or {}), device)


def _moved(values: Any, device: torch.device) -> Any:
    return tree_map(lambda item: item.to(device) if isinstance(item, Tensor) else item, values)
