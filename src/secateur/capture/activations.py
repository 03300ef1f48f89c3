"""How large the values are that each channel carries: the model runs on data, watched where channels are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from secateur.base import SecateurError, as_call
from secateur.capture.forward import Leaf, capture
from secateur.capture.recorder import CallRecorder, bound_arguments
from secateur.capture.trace import Trace, Value

# The operators that read channels, with the argument that carries them.
_READERS = {
    **dict.fromkeys(("linear", "convolution"), "input"),
    **dict.fromkeys(("matmul", "mm", "bmm", "_grouped_mm"), "self"),
    "addmm": "mat1",
}


@dataclass(eq=False)
class Site:
    """An axis of an argument of a call, and the mean magnitude of each of its coordinates, over all data seen."""

    argument: str
    axis: int
    total: NDArray[np.float64]
    passes: int = field(default=0)

    def add(self, tensor: Tensor) -> None:
        others = [d for d in range(tensor.dim()) if d != self.axis]
        self.total += tensor.detach().abs().float().mean(others).double().cpu().numpy()
        self.passes += 1

    @property
    def mean(self) -> NDArray[np.float64]:
        return self.total / max(1, self.passes)


def find_sites(trace: Trace, wanted: Callable[[Value, int], bool]) -> dict[int, list[Site]]:
    """By call, the axes of activations at which `wanted` says yes."""
    sites: dict[int, list[Site]] = {}
    for call in trace.calls[: trace.example_calls]:
        argument = _READERS.get(call.op)
        value = call[argument] if argument is not None else None
        if argument is not None and isinstance(value, Value) and value.kind == "result":
            for axis, length in enumerate(value.shape):
                if wanted(value, axis):
                    sites.setdefault(call.index, []).append(Site(argument, axis, np.zeros(length)))
    return sites


def mean_magnitudes(module: nn.Module, data: Iterable[Any], trace: Trace, sites: Mapping[int, list[Site]]) -> None:
    """Runs the model on every input of `data` and fills the sites."""
    for inputs in data:
        args, kwargs = as_call(inputs)
        capture(module, args, kwargs, lambda leaves: _Meter(leaves, trace, sites))


class _Meter(CallRecorder):
    def __init__(self, leaves: list[Leaf], trace: Trace, sites: Mapping[int, list[Site]]) -> None:
        super().__init__(leaves)
        self.trace = trace
        self.sites = sites

    def emit(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any, name: str = "") -> None:
        index = len(self.calls)
        super().emit(op, args, kwargs, out, name)
        if index in self.sites:
            if self.calls[index].op != self.trace.calls[index].op:
                raise SecateurError(
                    "The model takes another way on this data than on the example; score it by weights."
                )
            given = bound_arguments(op, args, kwargs)
            muted, self.muted = self.muted, True  # what is computed here is no part of the model
            for site in self.sites[index]:
                site.add(given[site.argument])
            self.muted = muted
