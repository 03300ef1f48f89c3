"""How torch traces a model to export it: the call, sizes that may change, silence, and errors in one sentence."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import torch
from torch import nn

from secateur.base import (
    SecateurError,
    UsageError,
    as_call,
    copied,
    evaluating,
    in_brief,
    in_signature_order,
    install_hint,
)
from secateur.capture.free_axes import FreeAxis, names_of_axes
from secateur.capture.isolation import one_at_a_time


@dataclass(frozen=True)
class TracedCall:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic_shapes: dict[str, Any] | None
    """For each argument by name, the names of those axes that may change; None where all sizes are fixed."""


def call_to_trace(model: nn.Module, example_inputs: Any, free: Sequence[FreeAxis]) -> TracedCall:
    inputs = in_signature_order(model, example_inputs)
    for axis in free:
        if axis.size == 1:  # would be taken for a size that never changes
            inputs = axis.resized(inputs, 2)
    args, kwargs = copied(*as_call(inputs))
    return TracedCall(args, kwargs, names_of_axes(model, args, kwargs, free) if free else None)


@contextlib.contextmanager
def tracing(model: nn.Module, title: str, call: str) -> Iterator[None]:
    """`title` is the format to trace for, and `call` shows the user the whole of an error."""
    try:
        with evaluating(model), torch.no_grad(), quiet():
            yield
    except ModuleNotFoundError as error:
        raise UsageError(f"{title} export needs {error.name}: {install_hint('onnxruntime')}.") from error
    except Exception as error:  # whatever the exporter meets in the user's code
        raise SecateurError(
            f"The model cannot be exported to {title} ({in_brief(_root_cause(error))}); {call} shows the whole message."
        ) from error


def _root_cause(error: BaseException) -> BaseException:
    """The exporter's own message is general advice; what happened is further down."""
    return error if error.__cause__ is None else _root_cause(error.__cause__)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Exporters report their progress on stdout, their doubts to the log, and graphs that they give up on stderr.

    Other threads speak on, but for their warnings: those Python can only silence for all.
    """
    here = threading.get_ident()

    def may_pass(record: logging.LogRecord) -> bool:
        return record.thread != here or record.levelno > logging.WARNING

    loggers = [logging.root, *logging.root.manager.loggerDict.values()]  # dozens of torch's have handlers of their own
    handlers = {handler for logger in loggers for handler in getattr(logger, "handlers", ())}
    with one_at_a_time, contextlib.ExitStack() as stack:
        for handler in handlers:
            handler.addFilter(may_pass)
            stack.callback(handler.removeFilter, may_pass)
        stack.enter_context(contextlib.redirect_stdout(_SilentHere(sys.stdout)))
        stack.enter_context(contextlib.redirect_stderr(_SilentHere(sys.stderr)))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield


class _SilentHere:
    """A stream that swallows what the thread that made it writes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
