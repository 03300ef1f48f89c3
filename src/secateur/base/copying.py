"""A copy of a model, in a fraction of the time that `copy.deepcopy` takes for the same."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any, TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)

_IMMUTABLE = frozenset((bool, int, float, str, type(None)))


def deep_copy(model: Model) -> Model:
    """What `copy.deepcopy` returns. Most of its time goes into numbers, names and the dozen empty tables of hooks that
    every module has: it is told of modules that hold nothing unusual beforehand, and of what they hold."""
    plain = [module for module in model.modules() if _is_copied_by_its_state(type(module))]
    memo: dict[int, Any] = {id(module): type(module).__new__(type(module)) for module in plain}
    for module in reversed(plain):  # what a module holds is filled before it
        state = {name: _copied(value, memo) for name, value in module.__getstate__().items()}
        memo[id(module)].__setstate__(state)
    return copy.deepcopy(model, memo)


def _is_copied_by_its_state(kind: type[nn.Module]) -> bool:
    """Whether the class leaves it to Python how it is copied."""
    if hasattr(kind, "__deepcopy__") or hasattr(kind, "__getnewargs__") or hasattr(kind, "__getnewargs_ex__"):
        return False
    usual = (object.__reduce__, object.__reduce_ex__, getattr(nn.Module, "__getstate__"))  # noqa: B009
    return (kind.__reduce__, kind.__reduce_ex__, getattr(kind, "__getstate__")) == usual  # noqa: B009


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is OrderedDict and not value and not vars(value):
        return memo.setdefault(id(value), OrderedDict())
    if kind is dict and id(value) not in memo:  # of parameters, of buffers or of modules
        copied = memo[id(value)] = {}
        for key, item in value.items():
            copied[_copied(key, memo)] = _copied(item, memo)
        return copied
    return copy.deepcopy(value, memo)
