"""Example inputs as the user gives them: a tensor, a tuple of positional arguments, or a dict of keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from secateur.errors import UsageError

__all__ = ["as_call", "batch_of", "copied", "with_batch"]


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


def batch_of(example_inputs: Any) -> int:
    """The length of the first axis of the first tensor that has one; 0 if none has."""
    tensors = (item for item in tree_leaves(as_call(example_inputs)) if isinstance(item, Tensor))
    return next((int(tensor.shape[0]) for tensor in tensors if tensor.ndim), 0)


def with_batch(example_inputs: Any, batch: int) -> Any:
    """The same inputs with another batch, made of their own examples: every tensor whose first axis is the batch."""
    present = batch_of(example_inputs)

    def resized(item: Any) -> Any:
        if not isinstance(item, Tensor) or item.ndim == 0 or item.shape[0] != present:
            return item
        return item[torch.arange(batch, device=item.device) % present]

    return example_inputs if batch == present or not present else tree_map(resized, example_inputs)
