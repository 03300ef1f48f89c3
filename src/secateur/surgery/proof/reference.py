"""The reference against which a physically pruned model is proven: the full-size model, with NaN for "removed".

Every removed coordinate of every parameter and buffer of the original model is overwritten with NaN, and the model runs
as its author wrote it. `RemovedIsNaN` makes NaN behave like absence in each operation: sums leave it out, statistics
are taken without it, and what is computed from it alone is removed as well. Nothing of the channel engine takes part,
so its mistakes cannot repeat here. Operations without a rule run as they are: NaN spreads, and the proof fails rather
than passing wrongly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from secateur.base import tensors_in
from secateur.capture import (
    RECURRENT,
    agreed,
    autograd_functions_run_by,
    caches_apart,
    definition_of,
    lowered,
    plain_execution,
)
from secateur.surgery.proof import norms as norms  # registers its rules
from secateur.surgery.proof.absence import RemovedIsNaN
from secateur.surgery.proof.float64 import Float64, lifted


def run_reference(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int = 0) -> Any:
    """The outputs of a float64 model whose removed coordinates are NaN, computed as if those were absent."""
    # Float64 is entered last and thus sees an operation first: RemovedIsNaN gets it in float64 already.
    with RemovedIsNaN():
        return run_float64(model, args, kwargs, seed)


def run_float64(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int = 0, own: torch.dtype | None = None
) -> Any:
    """The outputs of a float64 model with float64 throughout: the pruned model's side of the proof.

    Operators that have a definition run as that. With a dtype of their `own` they run themselves as well, and have to
    agree.
    """
    args, kwargs = lifted((args, kwargs))
    operations = _PlainOperations(own)
    with (
        plain_execution(),
        caches_apart(model),
        autograd_functions_run_by(operations.run_autograd_function),
        operations,
        Float64(seed),
    ):
        return model(*args, **kwargs)


class _PlainOperations(TorchFunctionMode):
    """No kernel that does the work of a whole layer: recurrent layers run on the CPU, which lacks cuDNN's.

    That a function mode is active turns the fast path of attention off, for this thread alone.
    """

    def __init__(self, own: torch.dtype | None) -> None:
        super().__init__()
        self._own = own

    def __torch_function__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (definition := definition_of(function)) is not None:
            with self:
                out = definition(*args, **kwargs)
            return self._checked(function, function, args, kwargs, out)
        if function not in RECURRENT:
            return function(*args, **kwargs)
        device = next(tensors_in(args)).device
        return _moved(function(*_moved(args, torch.device("cpu")), **kwargs), device)

    def run_autograd_function(
        self, cls: type[torch.autograd.Function], args: tuple[Any, ...], run: Callable[..., Any]
    ) -> Any:
        definition = definition_of(cls)
        return run(*args) if definition is None else self._checked(cls, run, args, {}, definition(*args))

    def _checked(self, operator: Any, run: Callable[..., Any], args: Any, kwargs: Any, out: Any) -> Any:
        if self._own is None:
            return out
        args, kwargs = lowered((args, kwargs), self._own)
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return agreed(operator, run(*args, **kwargs), out)


def _moved(values: Any, device: torch.device) -> Any:
    return tree_map(lambda item: item.to(device) if isinstance(item, Tensor) else item, values)
