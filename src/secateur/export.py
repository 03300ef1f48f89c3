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

from secateur.errors import SecateurError, UsageError, in_brief
from secateur.example_inputs import as_call, batch_of, copied, in_signature_order, with_batch
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
    args, kwargs = copied(*as_call(in_signature_order(model, example_inputs)))
    shapes = _dynamic_batch(model, args, kwargs, batch_of(example_inputs)) if dynamic else None
    try:
        with evaluating(model), torch.no_grad(), _quiet():
            torch.onnx.export(model, args, path, kwargs=kwargs, dynamo=True, dynamic_shapes=shapes, verbose=False)
    except ModuleNotFoundError as error:
        raise UsageError(f"ONNX export needs {error.name}: pip install 'secateur[onnxruntime]'.") from error
    except Exception as error:  # whatever the exporter meets in the user's code
        raise SecateurError(
            f"The model cannot be exported to ONNX ({in_brief(_root_cause(error))}); "
            "torch.onnx.export(model, args, dynamo=True) shows the whole message."
        ) from error


def _root_cause(error: BaseException) -> BaseException:
    """The exporter's own message is general advice; what happened is further down."""
    return error if error.__cause__ is None else _root_cause(error.__cause__)


def _dynamic_batch(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], batch: int) -> dict[str, Any]:
    """For each argument by name, which of its axes is the batch."""

    def axes(value: Any) -> Any:
        fits = isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == batch
        return {0: torch.export.Dim.DYNAMIC} if fits else None

    arguments = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    return {name: tree_map(axes, value) for name, value in arguments.items()}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter reports its progress on stdout, its doubts to the log, and graphs that it gives up on stderr."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        sink = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
