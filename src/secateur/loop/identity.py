"""What makes two runs the same run: a folder's run goes on only where these agree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from secateur.base import full_tensor, parse_amount, unwrap
from secateur.loop.recipe import Recipe
from secateur.weights import Ranking

__all__ = ["digest_of_architecture", "digest_of_state", "digest_of_weights", "ranking_as_json", "recipe_as_text"]


def digest_of_architecture(model: nn.Module) -> str:
    tensors = [*unwrap(model).named_parameters(), *unwrap(model).named_buffers()]
    shapes = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors]
    return hashlib.sha256(repr(shapes).encode()).hexdigest()[:16]


def digest_of_weights(model: nn.Module) -> str:
    return _digest(unwrap(model).parameters())


def digest_of_state(model: nn.Module) -> str:
    """Of parameters and buffers: all that an evaluation depends on."""
    return _digest((*unwrap(model).parameters(), *unwrap(model).buffers()))


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(full_tensor(tensor.detach()).cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def recipe_as_text(recipe: Recipe) -> str:
    settings = {field.name: getattr(recipe, field.name) for field in fields(recipe)}
    optimizer = getattr(recipe.optimizer, "__qualname__", recipe.optimizer)
    return ", ".join(f"{name}={value}" for name, value in {**settings, "optimizer": optimizer}.items())


def ranking_as_json(ranking: Ranking) -> dict[str, Any]:
    """The options as plain values, written the same way every time; a score function is known by its name."""
    score = ranking.get("score", "l1")
    return {
        "scope": ranking.get("scope"),
        "pattern": ranking.get("pattern"),
        "score": score if isinstance(score, str) else getattr(score, "__qualname__", "custom"),
        "keep": sorted(ranking.get("keep", ())),
        "include": sorted(ranking.get("include", ())),
        "multiple_of": ranking.get("multiple_of"),
        "floor": ranking.get("floor"),
        "runtime": ranking.get("runtime"),
        "batch": ranking.get("batch"),
        "threads": ranking.get("threads"),
        "per_layer": {name: parse_amount(own) for name, own in (ranking.get("per_layer") or {}).items()},
    }
