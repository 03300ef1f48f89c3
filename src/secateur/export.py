"""Models in the formats of other runtimes."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from secateur.errors import SecateurError, UsageError
from secateur.example_inputs import as_call, batch_of, copied, with_batch
from secateur.modes import evaluating

__all__ = ["export_onnx"]


def export_onnx(model: nn.Module, example_inputs: Any, path: Path) -> bool:
    """Writes `model` in evaluation mode as ONNX, with a batch of any size where the model allows that.

    Returns whether it did; otherwise the file takes the batch of `example_inputs` only.
    """
    batch = batch_of(example_inputs)
    if batch:
        try:
            # A size of 1 would be taken for one that never changes.
            _export(model, with_batch(example_inputs, max(2, batch)), path, dynamic=True)
            return True
        except SecateurError:
            pass  # sizes that the code computes from the batch, for one, tie the graph to it
    _export(model, example_inputs, path, dynamic=False)
    return False


def _export(model: nn.Module, example_inputs: Any, path: Path, dynamic: bool) -> None:
    args, kwargs = copied(*as_call(example_inputs))
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    shapes = _dynamic_batch(model, args, kwargs, batch_of(example_inputs)) if dynamic else None
    try:
        with evaluating(model), torch.no_grad(), _quiet():
            torch.onnx.export(model, args, path, kwargs=kwargs, dynamo=True, dynamic_shapes=shapes, verbose=False)
    except ModuleNotFoundError as error:
        raise UsageError(f"ONNX export needs {error.name}: pip install 'secateur[onnxruntime]'.") from error
    except Exception as error:  # whatever the exporter meets in the user's code
        first_line = str(error).strip().partition("\n")[0]
        raise SecateurError(
            f"The model cannot be exported to ONNX ({type(error).__name__}: {first_line}); "
            "torch.onnx.export(model, args, dynamo=True) shows the whole message."
        ) from error


def _dynamic_batch(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], batch: int) -> dict[str, Any]:
    """For each argument by name, which of its axes is the batch."""

    def axes(value: Any) -> Any:
        fits = isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == batch
        return {0: torch.export.Dim.DYNAMIC} if fits else None

    arguments = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    return {name: tree_map(axes, value) for name, value in arguments.items()}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter reports its progress on stdout and its doubts to the log; neither is for our users."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
