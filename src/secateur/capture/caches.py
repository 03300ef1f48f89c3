"""Caches in Python code, which our passes neither read nor fill.

A function under `functools.lru_cache`, or one that keeps its results in a dict by sizes, hands the tensors and sizes of
one pass to the next, where they come from nowhere. And what our passes compute, on stand-ins or in float64, is not what
the model should find there later. So while one of them runs, each such cache that the model's code reaches by name is
played by a stand-in: in this thread it begins empty and is forgotten in the end, for other threads it is the cache
itself. A cache that is not found costs pruning, not correctness: a tensor that comes from nowhere is left as it is.
"""

from __future__ import annotations

import copy
import dis
import gc
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from functools import _lru_cache_wrapper
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.overrides import _pop_mode, _push_mode
from torch.utils._python_dispatch import _disable_current_modes

from secateur.base import tensors_in, walked
from secateur.capture.expressions import is_traced

_TRAINERS = ("lightning", "pytorch_lightning")  # from a module of theirs, all of their code is in reach
_FOREIGN = frozenset((*sys.stdlib_module_names, "torch", "numpy", *_TRAINERS))
_WRITES = frozenset(("setdefault", "update"))
_DATA = frozenset((bool, int, float, str, type(None), tuple, list, dict, set, OrderedDict))
_NO_SIZES = (bool, float, str, bytes, type(None), torch.dtype, torch.device)


@contextmanager
def caches_apart(model: nn.Module) -> Iterator[None]:
    """To this thread, the caches of the model's code are inside as if nothing had run before. Captures take turns, so
    that no other puts stand-ins of its own there: see `plain_execution`."""
    places = _Search(model).places()
    stand_ins = {id(cache): _stand_in(cache) for *_, cache in places}  # one for all names of a cache
    try:
        for holder, name, held, cache in places:
            _put(holder, name, _wrapped_like(held, stand_ins[id(cache)]))
        yield
    finally:
        for holder, name, held, _ in places:
            _put(holder, name, held)


def forget_results_of(model: nn.Module) -> None:
    """Empties each cache of a method that was called on a part of the model: its results are of another size."""
    search = _Search(model)
    parts = {id(module) for module in search.modules}
    for *_, cache in search.places():
        keys = [key for held in gc.get_referents(cache) if type(held) is dict for key in tuple(held)]
        if isinstance(cache, _lru_cache_wrapper) and any(_holds(key, parts) for key in keys):
            cache.cache_clear()


def _holds(key: Any, parts: set[int]) -> bool:
    return any(id(item) in parts for item in (key if isinstance(key, tuple) else (key,)))


class _Search:
    """Finds the caches that a model's `forward` reaches by name, through functions, classes and Python modules.

    A name in a function may be one of any class that was reached: nothing is known of the types of variables.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places: dict[tuple[int, str], tuple[Any, str, Any, Any]] = {}
        self._written: set[int] = set()
        self._seen: set[Any] = set()
        self._names = {"forward", "__call__"}
        self._members: dict[str, list[type]] = {}
        self._functions: list[FunctionType] = []
        self.modules = [module for _, module in walked(model)]
        for kind in {type(module) for module in self.modules}:
            self._reach_class(kind)
        for module in self.modules:
            for name, held in [item for item in vars(module).items() if type(item[1]) not in _DATA]:
                self._reach(vars(module), name, held)
            for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
                self._reach_function(hook)
        while self._functions:
            self._follow(self._functions.pop())

    def places(self) -> list[tuple[Any, str, Any, Any]]:
        """Who holds each cache: the dict of a Python module or of a part of the model, a class or a cell; the name
        there; what is held, which may be a property of it; and the cache. A dict that no function fills is none."""
        return [
            place for place in self._places.values() if not isinstance(place[3], dict) or id(place[3]) in self._written
        ]

    def _reach(self, holder: Any, name: str, held: Any, by: CodeType | None = None) -> None:
        value = _unwrapped(held)
        if isinstance(value, FunctionType | MethodType):
            self._reach_function(value)
        elif isinstance(value, type):
            self._reach_class(value)
        elif isinstance(value, ModuleType):
            self._reach_module(value, by)
        elif isinstance(value, _lru_cache_wrapper):
            self._places[id(holder), name] = holder, name, held, value
            self._reach_function(value.__wrapped__)
        elif isinstance(value, dict):
            self._reach_dict(holder, name, value, by)
        else:
            self._reach_class(type(value))

    def _reach_function(self, value: Any) -> None:
        function = value.__func__ if isinstance(value, MethodType) else value
        if isinstance(function, FunctionType) and not _is_foreign(function.__module__) and self._is_new(id(function)):
            self._functions.append(function)

    def _reach_class(self, kind: type) -> None:
        for base in kind.__mro__:
            if not _is_foreign(base.__module__) and self._is_new(id(base)):
                for name, held in list(vars(base).items()):
                    self._members.setdefault(name, []).append(base)
                    if name in self._names or (name == "__init__" and not issubclass(base, nn.Module)):
                        self._reach(base, name, held)

    def _reach_module(self, module: ModuleType, by: CodeType | None) -> None:
        if by is not None and not _is_foreign(module.__name__) and self._is_new((id(module), id(by))):
            for name in vars(module).keys() & set(by.co_names):
                self._reach(vars(module), name, vars(module)[name], by)

    def _reach_dict(self, holder: Any, name: str, value: dict[Any, Any], by: CodeType | None) -> None:
        if all(map(_has_int, tuple(value))):  # with other keys it is no cache by sizes
            self._places[id(holder), name] = holder, name, value, value
            if by is not None and _writes_items(by):
                self._written.add(id(value))

    def _is_new(self, item: object) -> bool:
        new = item not in self._seen
        self._seen.add(item)
        return new

    def _follow(self, function: FunctionType) -> None:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for code in _with_inner(function.__code__):
            for name in cells.keys() & set(code.co_freevars):
                for held in _contents(cells[name]):
                    self._reach(cells[name], name, held, code)
            for name in code.co_names:
                if name in function.__globals__:
                    self._reach(function.__globals__, name, function.__globals__[name], code)
                self._names.add(name)
                for base in self._members.get(name, ()):
                    self._reach(base, name, vars(base)[name], code)


def _is_foreign(module: str | None) -> bool:
    return module is None or module.partition(".")[0] in _FOREIGN


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _contents(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # not filled yet
        return ()


def _writes_items(code: CodeType) -> bool:
    return dis.opmap["STORE_SUBSCR"] in code.co_code[::2] or not _WRITES.isdisjoint(code.co_names)


def _unwrapped(held: Any) -> Any:
    if isinstance(held, property):
        return held.fget
    return held.__func__ if isinstance(held, staticmethod | classmethod) else held


def _put(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, CellType):
        holder.cell_contents = value
    elif isinstance(holder, type):
        setattr(holder, name, value)
    else:
        holder[name] = value


def _wrapped_like(held: Any, stand_in: Any) -> Any:
    if isinstance(held, property):
        return held.getter(stand_in)
    return type(held)(stand_in) if isinstance(held, staticmethod | classmethod) else stand_in


def _stand_in(cache: Any) -> Any:
    return _ApartDict(cache) if isinstance(cache, dict) else _ApartFunction(cache)


class _ApartFunction:
    """A function under `lru_cache`, which is told apart by where sizes come from: two that are equal may be cut
    differently."""

    def __init__(self, cached: Any) -> None:
        self._thread = threading.get_ident()
        self._cached = cached
        self._own: dict[Any, Any] = {}
        self._modes_around = torch._C._len_torch_function_stack()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            return self._cached(*args, **kwargs)
        key = _by_origin((args, tuple(kwargs.items())))
        if key not in self._own:
            self._own[key] = self._result(args, kwargs)
        return self._own[key]

    def _result(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Only sizes and tensors belong to a pass. Whether a package is installed, or the one logger, is for all."""
        if _has_no_sizes((*args, *kwargs.values())):
            with _unwatched(self._modes_around):  # nothing of this pass gets into the cache
                out = self._cached(*args, **kwargs)
            if next(tensors_in(out, objects=False), None) is None:
                return out
        return self._cached.__wrapped__(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cached, name)


@contextmanager
def _unwatched(modes_around: int) -> Iterator[None]:
    """Without the modes of a pass, and with those around it, such as a default device."""
    modes = [_pop_mode() for _ in range(torch._C._len_torch_function_stack() - modes_around)]
    try:
        with _disable_current_modes():
            yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)


def _by_origin(tree: Any) -> Any:
    if isinstance(tree, tuple):
        return tuple(map(_by_origin, tree))
    return tree.expression if is_traced(tree) else (type(tree), tree)


def _has_no_sizes(tree: Any) -> bool:
    return all(map(_has_no_sizes, tree)) if type(tree) is tuple else type(tree) in _NO_SIZES


class _ApartDict(MutableMapping[Any, Any]):
    """A dict that the model's code fills by sizes."""

    def __init__(self, shared: dict[Any, Any]) -> None:
        self._thread = threading.get_ident()
        self._shared = shared
        self._own = copy.copy(shared)
        self._own.clear()

    @property
    def _here(self) -> dict[Any, Any]:
        return self._own if threading.get_ident() == self._thread else self._shared

    def __getitem__(self, key: Any) -> Any:
        return self._here[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._here[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._here[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._here)

    def __len__(self) -> int:
        return len(self._here)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._here, name)


def _has_int(key: Any) -> bool:
    return any(map(_has_int, key)) if isinstance(key, tuple) else isinstance(key, int)
