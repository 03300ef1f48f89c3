"""A transformers model whose config can say its new widths loads with `from_pretrained`: finds that config.

No rule says which number of a config is which width. So numbers are changed in the ratios in which widths have changed,
and models built from them on the meta device, until one has exactly the pruned shapes and numbers.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from secateur.capture import read_attribute
from secateur.checkpoint.tensors import tensors_of
from secateur.plans import Plan

CONFIG_FILE = "config.json"

# A config has a few widths for all layers; a model with more of them has widths of its own in each.
_MOST_CHANGES = 8
_MOST_BUILDS = 48

Way = tuple[str, ...]


class NotExpressible(Exception):
    """Says why `from_pretrained` cannot build the pruned model."""


def config_of_pruned(model: nn.Module, plan: Plan | None) -> str:
    """The text of `config.json`."""
    transformers = sys.modules.get("transformers")  # where nobody has imported it, the model is none of its models
    if transformers is None or not isinstance(model, transformers.PreTrainedModel):
        raise NotExpressible("it is not a transformers model")
    computed_anew = set(tensors_of(model).buffers) & set(plan.tensors if plan else ())
    if computed_anew:
        raise NotExpressible(f"the plan cuts {min(computed_anew)}, which from_pretrained would compute anew")
    config = _Search(model, plan).config_from(model.config)
    config.architectures = [type(model).__name__]
    config.dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return str(config.to_json_string())


class _Search:
    """From config to config, each nearer to the model; where the way ends, back to the last fork."""

    def __init__(self, model: nn.Module, plan: Plan | None) -> None:
        self.model = model
        self.attributes = {key: new for key, (_, new) in plan.attributes.items()} if plan else {}
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors_of(model).state.items()}
        cuts = plan.tensors.values() if plan else ()
        axes = {(cut.shape[axis], len(kept)) for cut in cuts for axis, kept in cut.kept.items()}
        self.changes = axes | (set(plan.attributes.values()) if plan else set())
        self.seen: set[tuple[tuple[Way, int], ...]] = set()

    def config_from(self, start: Any) -> Any:
        if len(self.changes) > _MOST_CHANGES:
            raise NotExpressible("its layers have widths of their own")
        found = self._nearer(copy.deepcopy(start), math.inf)
        if found is None:
            raise NotExpressible("its config has no numbers that give the widths that are left")
        return found

    def _nearer(self, config: Any, distance: float) -> Any | None:
        numbers = tuple(_numbers(config))
        if numbers in self.seen or len(self.seen) >= _MOST_BUILDS:
            return None
        self.seen.add(numbers)
        own = self._distance(config)
        if own == 0:
            return config
        if own >= distance:
            return None
        candidates = (self._nearer(candidate, own) for candidate in self._candidates(config))
        return next((found for found in candidates if found is not None), None)

    def _distance(self, config: Any) -> float:
        """In how many axes and numbers the model that the config builds differs from the pruned one."""
        try:
            read_back = type(config).from_dict(config.to_dict())  # what `from_pretrained` will get
            with torch.device("meta"):
                built = type(self.model)(read_back)
        except Exception:  # a config may refuse a combination of numbers in any way
            return math.inf
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors_of(built).state.items()}
        if {name: len(shape) for name, shape in shapes.items()} != {n: len(s) for n, s in self.shapes.items()}:
            return math.inf
        axes = sum(a != b for name in shapes for a, b in zip(shapes[name], self.shapes[name], strict=True))
        sizes = sum(read_attribute(built, key) != new for key, new in self.attributes.items())
        return axes + sizes + self._differing_floats(built)

    def _differing_floats(self, built: nn.Module) -> int:
        """Equal shapes are not enough: a scale that the code computes from a width would be another."""
        return sum(
            vars(built.get_submodule(path)).get(key) != value
            for path, module in self.model.named_modules()
            for key, value in vars(module).items()
            if type(value) is float
        )

    def _candidates(self, config: Any) -> Iterator[Any]:
        """With one number changed: first those that are themselves what has changed, then those that divide it."""
        tries = {
            (number != before, way, number * after // before)
            for way, number in _numbers(config)
            for before, after in self.changes
            if before % number == 0 and number * after % before == 0
        }
        for _, way, number in sorted(tries):
            candidate = copy.deepcopy(config)
            holder = candidate
            for step in way[:-1]:
                holder = getattr(holder, step)
            setattr(holder, way[-1], number)
            yield candidate


def _numbers(config: Any, way: Way = ()) -> Iterator[tuple[Way, int]]:
    for key, value in vars(config).items():
        if type(value) is int and value > 0:
            yield (*way, key), value
        elif hasattr(value, "to_json_string"):  # a config within the config
            yield from _numbers(value, (*way, key))
