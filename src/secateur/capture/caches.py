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
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from functools import _lru_cache_wrapper
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from secateur.base import tensors_in
from secateur.capture.expressions import is_traced

_FOREIGN = frozenset((*sys.stdlib_module_names, "torch", "numpy"))
_WRITES = frozenset(("setdefault", "update"))
_CALLED_UNNAMED = frozenset(("__init__", "__call__"))
_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)


@contextmanager
def caches_apart(model: nn.Module) -> Iterator[None]:
    """To this thread, the caches of the model's code are inside as if nothing had run before. Captures take turns, so
    that no other puts stand-ins of its own there: see `plain_execution`."""
    caches = _Search(model).caches.values()
    try:
        for holder, name, cache in caches:
            _put(holder, name, _stand_in(cache))
        yield
    finally:
        for holder, name, cache in caches:
            _put(holder, name, cache)


def forget_results_of(model: nn.Module) -> None:
    """Empties each cache of a method that was called on a part of the model: its results are of another size."""
    parts = {id(module) for module in model.modules()}
    for _, _, cache in _Search(model).caches.values():
        cached = _unwrapped(cache)
        keys = [key for held in gc.get_referents(cached) if type(held) is dict for key in held]
        if isinstance(cached, _lru_cache_wrapper) and any(_holds(key, parts) for key in keys):
            cached.cache_clear()


def _holds(key: Any, parts: set[int]) -> bool:
    return any(id(item) in parts for item in (key if isinstance(key, tuple) else (key,)))


class _Search:
    """Finds the caches that a model's `forward` reaches by name, through functions, classes and Python modules.

    A name in a method may be one of any class that was reached: nothing is known of the types of variables.
    """

    def __init__(self, model: nn.Module) -> None:
        self.caches: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        """Who holds each, the dict of a Python module, a class or a cell; its name there; the cache."""
        self._seen: set[int] = set()
        self._names = {"forward"}
        self._members: dict[str, list[type]] = {}
        self._functions: list[FunctionType] = []
        for module in model.modules():
            self._reach_class(type(module))
            for held in (*vars(module).values(), *module._forward_hooks.values(), *module._forward_pre_hooks.values()):
                self._reach_function(held)
        while self._functions:
            self._follow(self._functions.pop())

    def _reach_class(self, kind: type) -> None:
        for base in kind.__mro__:
            if not _is_foreign(base.__module__) and self._is_new(base):
                for name, held in list(vars(base).items()):
                    self._members.setdefault(name, []).append(base)
                    if name in self._names or (name in _CALLED_UNNAMED and not issubclass(base, nn.Module)):
                        self._reach(base, name, held)

    def _reach_function(self, held: Any) -> None:
        function = held.__func__ if isinstance(held, MethodType) else held
        if isinstance(function, FunctionType) and not _is_foreign(function.__module__) and self._is_new(function):
            self._functions.append(function)

    def _is_new(self, item: object) -> bool:
        new = id(item) not in self._seen
        self._seen.add(id(item))
        return new

    def _reach(self, holder: Any, name: str, held: Any, by: CodeType | None = None) -> None:
        value = _unwrapped(held)
        if isinstance(value, FunctionType | MethodType):
            self._reach_function(value)
        elif isinstance(value, type):
            self._reach_class(value)
        elif isinstance(value, _lru_cache_wrapper):
            self.caches[id(holder), name] = holder, name, held
            self._reach_function(value.__wrapped__)
        elif isinstance(value, dict) and by is not None and all(map(_has_int, tuple(value))) and _writes_items(by):
            self.caches[id(holder), name] = holder, name, held

    def _follow(self, function: FunctionType) -> None:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for code in _with_inner(function.__code__):
            for name in code.co_freevars:
                with suppress(KeyError, ValueError):  # of a function inside, and not filled yet
                    self._reach(cells[name], name, cells[name].cell_contents, code)
            for name in code.co_names:
                self._follow_name(name, function.__globals__, code)

    def _follow_name(self, name: str, namespace: dict[str, Any], code: CodeType) -> None:
        if name in namespace:
            value = namespace[name]
            self._reach(namespace, name, value, code)
            if isinstance(value, ModuleType) and not _is_foreign(value.__name__):
                for other in vars(value).keys() & set(code.co_names):
                    self._reach(vars(value), other, vars(value)[other], code)
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


def _writes_items(code: CodeType) -> bool:
    return not _WRITES.isdisjoint(code.co_names) or bytes([dis.opmap["STORE_SUBSCR"]]) in code.co_code[::2]


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


def _stand_in(held: Any) -> Any:
    cache = _unwrapped(held)
    stand_in: Any = _ApartDict(cache) if isinstance(cache, dict) else _ApartFunction(cache)
    if isinstance(held, property):
        return held.getter(stand_in)
    return type(held)(stand_in) if isinstance(held, staticmethod | classmethod) else stand_in


class _ApartFunction:
    """A function under `lru_cache`, which is told apart by where sizes come from: two that are equal may be cut
    differently."""

    def __init__(self, cached: Any) -> None:
        self._thread = threading.get_ident()
        self._cached = cached
        self._own: dict[Any, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            return self._cached(*args, **kwargs)
        key = _by_origin((args, tuple(kwargs.items())))
        if key not in self._own:
            self._own[key] = self._result(args, kwargs)
        return self._own[key]

    def _result(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Only sizes and tensors belong to a pass. Whether a package is installed, or the one logger, is for all."""
        if _is_plain((*args, *kwargs.values())):
            with _disable_current_modes(), torch._C.DisableTorchFunction():  # nothing of this pass gets into the cache
                out = self._cached(*args, **kwargs)
            if next(tensors_in(out, objects=False), None) is None:
                return out
        return self._cached.__wrapped__(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cached, name)


def _by_origin(tree: Any) -> Any:
    if isinstance(tree, tuple):
        return tuple(map(_by_origin, tree))
    return tree.expression if is_traced(tree) else (type(tree), tree)


def _is_plain(tree: Any) -> bool:
    return all(map(_is_plain, tree)) if type(tree) is tuple else type(tree) in _PLAIN


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
