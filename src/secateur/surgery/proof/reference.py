"""The reference against which a physically pruned model is proven: the full-size model, with NaN for "removed".

Every removed coordinate of every parameter and buffer of the original model is overwritten with NaN, and the model runs
as its author wrote it. `RemovedIsNaN` makes NaN behave like absence in each operation: sums leave it out, statistics
are taken without it, and what is computed from it alone is removed as well. Nothing of the channel engine takes part,
so its mistakes cannot repeat here. Operations without a rule run as they are: NaN spreads, and the proof fails rather
than passing wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from secateur.surgery.proof import norms as norms  # registers its rules
from secateur.surgery.proof.absence import RemovedIsNaN
from secateur.surgery.proof.float64 import Float64, lifted

__all__ = ["Float64", "RemovedIsNaN", "run_float64", "run_reference"]


def run_reference(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The outputs of a float64 model whose removed coordinates are NaN, computed as if those were absent."""
    # Float64 is entered last and thus sees an operation first: RemovedIsNaN gets it in float64 already.
    with RemovedIsNaN():
        return run_float64(model, args, kwargs)


def run_float64(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The outputs of a float64 model with float64 throughout: the pruned model's side of the proof."""
    args, kwargs = lifted((args, kwargs))
    with torch.no_grad(), _plain_operations(), Float64():
        return model(*args, **kwargs)


@contextmanager
def _plain_operations() -> Iterator[None]:
    """No kernel that does the work of a whole layer: the fast path of attention, and recurrent layers on CUDA."""
    fast_path, cudnn = torch.backends.mha.get_fastpath_enabled(), torch.backends.cudnn.enabled
    torch.backends.mha.set_fastpath_enabled(False)
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        torch.backends.cudnn.enabled = cudnn
