"""Custom autograd functions, handed to whoever watches a model run; a function mode does not see them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

Run = Callable[[type[torch.autograd.Function], tuple[Any, ...], Callable[..., Any]], Any]
"""What to do for a class, given the arguments of its `apply`, and `apply` itself."""


@contextmanager
def autograd_functions_run_by(run: Run) -> Iterator[None]:
    """In this thread, `apply` of every custom autograd function is what `run` makes of it."""
    original, here = torch.autograd.Function.__dict__["apply"], threading.get_ident()

    def apply(cls: Any, *args: Any) -> Any:
        if threading.get_ident() != here:
            return original.__func__(cls, *args)
        return run(cls, args, partial(original.__func__, cls))

    try:
        torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
        yield
    finally:
        torch.autograd.Function.apply = original  # type: ignore[method-assign]
