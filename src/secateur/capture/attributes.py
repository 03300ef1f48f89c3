"""The sizes that modules hold: ints, tuples and lists of ints, and those in the configs and dicts that a module keeps.

While a capture runs, each is a `TracedSize` that knows where it lives. Configs are often shared by many modules, so
each gets a copy of its own: only then can it be told who read a number, and changed for that reader alone.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from secateur.base import walked
from secateur.capture.expressions import Attribute, TracedSize, plain

# Geometry, not width: these never follow a channel count, and every convolution and pool has them.
_NOT_SIZES = frozenset(
    """kernel_size stride padding dilation output_padding _reversed_padding_repeated_twice padding_idx layer_idx
    layer_id scale_factor shift_size training""".split()
)
OF_EVERY_MODULE = frozenset(nn.Module().__dict__)
_CONFIG_NAMES = ("config", "cfg", "args", "namespace", "settings", "params", "options")
_DEEPEST = 3


@contextmanager
def sizes_with_origin(model: nn.Module) -> Iterator[dict[Attribute, int]]:
    """Every size attribute is a `TracedSize` inside; yields their values. `unchanged` puts the plain ints back."""
    found: dict[Attribute, int] = {}
    for path, module in walked(model):
        holder = module.__dict__
        for key in [key for key in holder if key not in OF_EVERY_MODULE and key not in _NOT_SIZES]:
            tagged = _tagged(holder[key], (path, (key,)), found)
            if tagged is not None:
                holder[key] = tagged
    yield found


def _tagged(value: Any, at: Attribute, found: dict[Attribute, int]) -> Any:
    """`value` with its ints replaced by sizes; None where it holds none."""
    path, way = at
    if _is_size(value):
        found[at] = plain(value)
        return TracedSize(value, ("attribute", at))
    if type(value) in (tuple, list, torch.Size) and value and all(map(_is_size, value)):
        sizes = [_tagged(item, (path, (*way, i)), found) for i, item in enumerate(value)]
        return sizes if type(value) is list else tuple(sizes)
    if len(way) >= _DEEPEST:
        return None
    if type(value) is dict:
        tagged = {key: _tagged(item, (path, (*way, key)), found) for key, item in value.items() if isinstance(key, str)}
        tagged = {key: item for key, item in tagged.items() if item is not None}
        return {**value, **tagged} if tagged else None
    if _is_config(value):
        twin = copy.copy(value)
        for key, item in list(vars(twin).items()):
            tagged_item = _tagged(item, (path, (*way, key)), found)
            if tagged_item is not None:
                vars(twin)[key] = tagged_item
        return twin
    return None


def _is_size(value: object) -> bool:
    """Also where a pass has stored one on an object that outlived it."""
    return type(value) in (int, TracedSize)


def _is_config(value: object) -> bool:
    if isinstance(value, nn.Module | Tensor | type) or not hasattr(value, "__dict__") or callable(value):
        return False
    return dataclasses.is_dataclass(value) or type(value).__name__.lower().endswith(_CONFIG_NAMES)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Whatever the pass stores on a module, such as a cache, is gone afterwards, and what it replaced is back."""
    kept = [item for _, module in walked(model) for item in (*vars(module).values(), vars(module))]
    # Parameters, buffers, submodules, hooks, caches that are dicts, and attributes.
    holders = [item for item in kept if isinstance(item, dict)]
    empty = [holder for holder in holders if not holder]  # most of them: hooks of kinds that nobody uses
    before = [(holder, dict(holder)) for holder in holders if holder]
    lists = [(item, list(item)) for item in kept if type(item) is list]
    try:
        yield
    finally:
        for holder in empty:
            holder.clear()
        for now, then in before:
            if same_items(now, then):
                continue
            for key in [key for key in now if key not in then]:
                del now[key]
            for key, value in then.items():
                if key not in now or now[key] is not value:
                    now[key] = value
        for held, items in lists:
            held[:] = items


def same_items(now: dict[Any, Any], then: dict[Any, Any]) -> bool:
    """Whether two dicts hold the very same objects, in the same order."""
    return len(now) == len(then) and all(map(is_, now.values(), then.values())) and list(now) == list(then)


def read_attribute(model: nn.Module, attribute: Attribute) -> int | None:
    """The number at `attribute`; None where there is none."""
    path, way = attribute
    try:
        value: Any = model.get_submodule(path).__dict__
        for step in way:
            holder: Any = value if isinstance(value, tuple | list | dict) else vars(value)
            value = holder[step]
    except (AttributeError, KeyError, IndexError, TypeError):
        return None
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def write_attributes(model: nn.Module, new: Mapping[Attribute, int], undo: list[Callable[[], None]]) -> None:
    """Gives each attribute its new number, in a config of the modules' own; `undo` gets what takes it back."""
    by_top: dict[tuple[str, str], dict[tuple[str | int, ...], int]] = {}
    for (path, way), number in new.items():
        by_top.setdefault((path, str(way[0])), {})[way[1:]] = number
    made: dict[tuple[int, frozenset[Any]], Any] = {}
    for (path, key), numbers in by_top.items():
        holder = model.get_submodule(path).__dict__
        undo.append(partial(holder.__setitem__, key, holder[key]))
        holder[key] = with_numbers(holder[key], numbers, made)


def with_numbers(
    value: Any, numbers: Mapping[tuple[str | int, ...], int], made: dict[tuple[int, frozenset[Any]], Any]
) -> Any:
    """A copy of `value` in which the places that the ways lead to hold the numbers. What modules share they share
    again, where it gets the same numbers for all of them: `made` knows the copies."""
    if () in numbers:
        return numbers[()]
    copied = id(value), frozenset(numbers.items())
    if copied not in made:
        steps: dict[str | int, dict[tuple[str | int, ...], int]] = {}
        for (step, *rest), number in numbers.items():
            steps.setdefault(step, {})[tuple(rest)] = number
        if isinstance(value, tuple | list):
            inner = [with_numbers(item, steps[i], made) if i in steps else item for i, item in enumerate(value)]
            made[copied] = type(value)(inner)
        else:
            made[copied] = twin = copy.copy(value)
            held = twin if isinstance(twin, dict) else vars(twin)
            held.update({step: with_numbers(held[step], each, made) for step, each in steps.items()})
    return made[copied]
