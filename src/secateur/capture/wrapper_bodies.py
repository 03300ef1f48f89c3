"""What torch's Python-level wrappers do, without their question whether somebody wants them whole.

`F.pad`, `Tensor.split` and their like first ask whether a function mode is active, and hand themselves to it as one
call. A recorder wants the calls inside. It runs a copy of the function that never asks: nothing of torch is changed,
so that other threads cannot notice.
"""

from __future__ import annotations

from types import CellType, FunctionType
from typing import Any

import torch._jit_internal
import torch._tensor
import torch.functional
import torch.nn.functional
from torch.overrides import TorchFunctionMode

from secateur.capture.attributes import same_items

# The third makes the functions that choose between two others by a flag, such as F.max_pool2d.
_HOMES = (torch.nn.functional, torch._tensor, torch._jit_internal, torch.functional)
_QUESTIONS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def _nobody_asked(*args: Any) -> bool:
    return False


class WrapperBodies:
    """Finds for a wrapper its copy that does not ask."""

    def __init__(self) -> None:
        self._copies: dict[FunctionType, FunctionType] = {}
        self._globals = {id(vars(home)): dict(vars(home)) for home in _HOMES}
        for names in self._globals.values():
            names.update(dict.fromkeys(_QUESTIONS, _nobody_asked))
            names.update({name: self.of(item) or item for name, item in names.items()})  # they call each other

    def of(self, function: Any) -> FunctionType | None:
        """None for what is not such a wrapper."""
        if not isinstance(function, FunctionType) or id(function.__globals__) not in self._globals:
            return None
        if function not in self._copies:
            names, closure = self._globals[id(function.__globals__)], function.__closure__ or ()
            cells = tuple(CellType() for _ in closure)
            copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells or None)
            copy.__kwdefaults__ = function.__kwdefaults__
            self._copies[function] = copy  # before its cells are filled: a function may hold itself
            for own, cell in zip(cells, closure, strict=True):
                own.cell_contents = self.of(cell.cell_contents) or cell.cell_contents
        return self._copies[function]


_latest: list[tuple[list[dict[str, Any]], WrapperBodies]] = []


def _wrapper_bodies() -> WrapperBodies:
    """Made anew only where somebody has replaced a function of torch since."""
    now = [vars(home) for home in _HOMES]
    if not _latest or not all(map(same_items, now, _latest[0][0])):
        _latest[:] = [([dict(names) for names in now], WrapperBodies())]
    return _latest[0][1]


class SeesInside(TorchFunctionMode):
    """A function mode whose `call` gets what torch's wrappers call, one by one, instead of the wrappers."""

    def __init__(self) -> None:
        super().__init__()
        self._bodies = _wrapper_bodies()
        self._wrapper: Any = None

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # torch hands a method that is called as super().method() over as the wrapper itself, a second time.
        if (body := self._bodies.of(function)) is None or self._wrapper is function:
            return self.call(function, args, kwargs or {})
        outer, self._wrapper = self._wrapper, function
        try:
            with self:
                return body(*args, **(kwargs or {}))
        finally:
            self._wrapper = outer

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)
