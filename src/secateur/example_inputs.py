"""Example inputs as the user gives them: a tensor, a tuple of positional arguments, or a dict of keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from secateur.errors import UsageError

__all__ = ["as_call"]


def as_call(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of `model(*args, **kwargs)`."""
    if isinstance(example_inputs, Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping):
        if not all(isinstance(key, str) for key in example_inputs):
            raise UsageError(
                "example_inputs is a dict with keys that are no argument names; pass model(**example_inputs)."
            )
        return (), dict(example_inputs)
    if isinstance(example_inputs, tuple | list):
        return tuple(example_inputs), {}
    raise UsageError(
        f"example_inputs is a {type(example_inputs).__name__}; "
        "pass a tensor, a tuple of arguments, or a dict of keyword arguments of the model."
    )
