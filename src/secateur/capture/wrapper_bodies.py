"""What torch's Python-level wrappers do, without their question whether somebody wants them whole.

`F.pad`, `Tensor.split` and their like first ask whether a function mode is active, and hand themselves to it as one
call. A recorder wants the calls inside. It runs a copy of the function that never asks: nothing of torch is changed,
so that other threads cannot notice.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import torch._jit_internal
import torch._tensor
import torch.functional
import torch.nn.functional

__all__ = ["WrapperBodies"]

# The third makes the functions that choose between two others by a flag, such as F.max_pool2d.
_HOMES = (torch.nn.functional, torch._tensor, torch._jit_internal, torch.functional)
_QUESTIONS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def _nobody_asked(*args: Any) -> bool:
    return False


class WrapperBodies(dict[Any, Callable[..., Any] | None]):
    """By function, its copy that does not ask; None for what is not such a wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self._globals = {id(vars(home)): dict(vars(home)) for home in _HOMES}
        for names in self._globals.values():
            names.update(dict.fromkeys(_QUESTIONS, _nobody_asked))
            names.update({name: self._without_asking(item) for name, item in names.items()})  # they call each other

    def __missing__(self, function: Any) -> Callable[..., Any] | None:
        body = self._without_asking(function)
        self[function] = None if body is function else body
        return self[function]

    def _without_asking(self, function: Any) -> Any:
        if not isinstance(function, FunctionType) or id(function.__globals__) not in self._globals:
            return function
        closure = tuple(CellType(self._without_asking(cell.cell_contents)) for cell in function.__closure__ or ())
        names = self._globals[id(function.__globals__)]
        body = FunctionType(function.__code__, names, function.__name__, function.__defaults__, closure or None)
        body.__kwdefaults__ = function.__kwdefaults__
        return body
