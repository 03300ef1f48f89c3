"""Sizes of a model's inputs that may be others at every call, such as the batch."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from secateur.base import batch_of, in_signature_order, input_tensors


@dataclass(frozen=True)
class FreeAxis:
    name: str
    size: int
    """In the example inputs."""
    places: frozenset[tuple[int, int]]
    """Where it is: the number of the tensor, in the model's own order, and the axis of that tensor."""

    def resized(self, inputs: Any, size: int) -> Any:
        """The same inputs with another size, made of their own entries."""
        number = itertools.count()

        def one(item: Any) -> Any:
            if isinstance(item, Tensor):
                own = next(number)
                for axis in sorted(axis for tensor, axis in self.places if tensor == own):
                    entries = torch.arange(size, device=item.device) % item.shape[axis]
                    item = item.index_select(axis, entries)
            return item

        return tree_map(one, inputs)


def batch_axes(model: nn.Module, example_inputs: Any) -> list[FreeAxis]:
    """The first axis of all tensors that have as many examples as the first one; none where no tensor has an axis."""
    batch, tensors = batch_of(example_inputs), input_tensors(in_signature_order(model, example_inputs))
    places = frozenset((i, 0) for i, tensor in enumerate(tensors) if tensor.ndim and tensor.shape[0] == batch)
    return [FreeAxis("batch", batch, places)] if batch else []


def names_of_axes(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], free: Collection[FreeAxis]
) -> dict[str, Any]:
    """For each argument by name, in its place for each tensor what its free axes are called; None for none."""
    number = itertools.count()

    def one(item: Any) -> Any:
        own = next(number) if isinstance(item, Tensor) else None
        return {place[1]: axis.name for axis in free for place in axis.places if place[0] == own} or None

    named_args, named_kwargs = tree_map(one, (args, kwargs))
    return dict(signature(model.forward).bind(*named_args, **named_kwargs).arguments)
