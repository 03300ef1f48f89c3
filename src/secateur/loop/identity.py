"""What makes two runs the same run: a folder's run goes on only where these agree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from secateur.base import full_tensor, unwrap
from secateur.loop.recipe import Recipe
from secateur.plans import Channels, Goal, Request, Target, Zeros

_AMOUNT = {Zeros: "amount", Channels: "channels", Target: "target"}
"""How a person says how much, by what is asked for."""


def digest_of_architecture(model: nn.Module) -> str:
    tensors = [*unwrap(model).named_parameters(), *unwrap(model).named_buffers()]
    return _short([(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors])


def digest_of_weights(model: nn.Module) -> str:
    return _digest(unwrap(model).parameters())


def digest_of_state(model: nn.Module) -> str:
    """Of parameters and buffers: all that an evaluation depends on."""
    return _digest((*unwrap(model).parameters(), *unwrap(model).buffers()))


def digest_of_inputs(inputs: Any, values: bool) -> str:
    """Of shapes and kinds alone, or of the values, too."""
    leaves, structure = tree_flatten(inputs)
    told = [(tuple(leaf.shape), str(leaf.dtype)) if isinstance(leaf, Tensor) else name_of(leaf) for leaf in leaves]
    return _short((str(structure), told, _digest(each for each in leaves if isinstance(each, Tensor) and values)))


def recipe_as_text(recipe: Recipe) -> str:
    return ", ".join(f"{field.name}={name_of(getattr(recipe, field.name))}" for field in fields(recipe))


def request_as_json(request: Request) -> dict[str, Any]:
    """All that was asked for as plain values, written the same way every time."""
    told = {field.name: _as_json(field.name, getattr(request, field.name)) for field in fields(request)}
    return {_AMOUNT[type(request)] if name in ("amount", "goal") else name: value for name, value in told.items()}


def name_of(value: Any) -> Any:
    """A function or class by its name, anything else as it is."""
    return getattr(value, "__qualname__", type(value).__qualname__) if callable(value) else value


def _as_json(option: str, value: Any) -> Any:
    if isinstance(value, Goal):
        return value.text
    if isinstance(value, Mapping):
        # In its order, because the first that fits counts.
        return [
            [name, own if isinstance(own, float) else _short([float(n) for n in own])] for name, own in value.items()
        ]
    if option in ("keep", "include", "outputs"):
        return sorted(value)
    if option == "data":
        with torch.random.fork_rng():  # a loader that shuffles must not change what comes after
            return [digest_of_inputs(each, values=True) for each in value]
    return _short(value) if is_dataclass(value) else name_of(value)


def _short(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(full_tensor(tensor.detach()).cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
