"""Lists of modules that are all alike, such as experts: what a cut may shorten, and who is looked up in them.

Python takes the number out of a tensor to look a module up, and then nobody knows any more where it came from. So the
lookup itself is written down.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from secateur.base import walked
from secateur.capture.attributes import OF_EVERY_MODULE
from secateur.capture.recorder import MODULE_LOOKUP, CallRecorder, muted


def find_lists(model: nn.Module) -> dict[str, int]:
    """By path, how many modules a list holds, each with tensors of its own that have the same names and shapes."""
    lists = [(path, part) for path, part in walked(model) if isinstance(part, nn.ModuleList) and len(part) > 1]
    alike = [(path, modules) for path, modules in lists if _are_alike(*modules)]
    names = _count_names(model) if alike else Counter()
    return {path: len(modules) for path, modules in alike if all(_is_own(t, names) for t in _tensors(modules))}


def _are_alike(first: nn.Module, *others: nn.Module) -> bool:
    form = _form(first)
    return bool(form[1]) and all(_form(each) == form for each in others)


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _count_names(model: nn.Module) -> Counter[int]:
    """By the identity of a tensor."""
    parts = [part for _, part in walked(model, every_name=True)]
    return Counter(id(tensor) for part in parts for tensor in (*part._parameters.values(), *part._buffers.values()))


def _is_own(tensor: Tensor, names: Counter[int]) -> bool:
    return names[id(tensor)] == 1 and tensor.dim() > 0 and (tensor.is_floating_point() or tensor.is_complex())


def _form(module: nn.Module) -> tuple[Any, ...]:
    """What makes a module what it is: what a file stores of it, nothing where that is only a part; its parts, and the
    numbers, words and functions that they hold."""
    stored = {name: t.shape for name, t in module.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
    held = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    settings = [
        (path, type(part), key, value)
        for path, part in module.named_modules()
        for key, value in vars(part).items()
        if key not in OF_EVERY_MODULE and (isinstance(value, bool | int | float | str | tuple) or callable(value))
    ]
    return type(module), stored if stored.keys() == held else {}, settings


@contextmanager
def lookups_recorded(model: nn.Module, lists: dict[str, int], recorder: CallRecorder) -> Iterator[None]:
    """Inside, looking a module up by a tensor is one call. Needs `unchanged` around it, which takes this back."""
    here = threading.get_ident()

    def watch(path: str, modules: nn.ModuleList) -> None:
        look_up: Callable[[Any], str] = modules._get_abs_string_index

        def watched(index: Any) -> str:
            if not isinstance(index, Tensor) or recorder.muted or threading.get_ident() != here:
                return look_up(index)
            with muted(recorder), torch._C.DisableTorchFunction():
                number = look_up(index)
            with torch._C.DisableTorchFunction():
                recorder.emit(None, (index, path, int(number)), {}, None, name=MODULE_LOOKUP)
            return number

        vars(modules)["_get_abs_string_index"] = watched

    for path in lists:
        watch(path, model.get_submodule(path))  # type: ignore[arg-type]
    yield
