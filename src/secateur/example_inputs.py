"""Example inputs as the user gives them: a tensor, a tuple of positional arguments, or a dict of keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from secateur.errors import UsageError

__all__ = ["as_call", "copied"]


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


def copied(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments for one pass: a model may write to its inputs."""
    return tree_map(lambda item: item.clone() if isinstance(item, Tensor) else item, (args, kwargs))  # type: ignore[no-any-return]
