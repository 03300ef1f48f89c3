"""A case of a rule: a model and what becomes of it, and the layers around the operator that is tested."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Case:
    """A model and what becomes of it."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    cut: Mapping[str, int] = field(default_factory=dict)
    """Tensors that lose the amount, with the axis; "name#2" where a tensor loses along another axis as well."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Layers that stay, with a part of the reason."""
    groups: tuple[str, ...] = ()
    """The names of the groups that are cut, where they matter."""
    moved: bool = True
    """Whether the removed channels had an influence; on a maximum, the smallest may have none."""

    def __str__(self) -> str:
        return self.name


CASES: list[Case] = []
ALONE = {"first.weight": 0, "first.bias": 0}
FIRST = {**ALONE, "last.weight": 1}
SCALE = {**FIRST, "op.scale": 0}


class Chain(nn.Module):
    """A layer, what is tested, and a layer that reads the result. Functions get the inputs after the first, too."""

    def __init__(self, first: nn.Module, op: Callable[..., Tensor], last: nn.Module) -> None:
        super().__init__()
        self.first, self.op, self.last = first, op, last

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.last(self.op(self.first(x), *others))


class PerChannel(nn.Module):
    """A function of x and of a parameter with a value for each channel."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.randn(shape or (16,), generator=torch.Generator().manual_seed(4)))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.scale)


class Conv(nn.Module):
    """A convolution that arrives as one in inference mode, too; nn.Conv2d would arrive as "conv2d"."""

    def __init__(self, axes: int, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(outputs, inputs, *[kernel] * axes)),
            nn.Parameter(torch.randn(outputs)),
        )
        self.geometry = [1.0] * axes, [kernel / 2 - 0.5] * axes

    def forward(self, x: Tensor) -> Tensor:
        ones, padding = ([int(n) for n in each] for each in self.geometry)
        return aten.convolution(x, self.weight, self.bias, ones, padding, ones, False, [0] * len(ones), 1)


def add(
    name: str, build: Callable[[], nn.Module], inputs: Callable[[], Any], cut: Mapping[str, int], **more: Any
) -> None:
    CASES.append(Case(name, build, inputs, cut, **more))


def numbers(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(shape, generator=torch.Generator().manual_seed(3))


def tokens(name: str, op: Callable[..., Tensor], reads: int = 16, cut: Mapping[str, int] = FIRST, **more: Any) -> None:
    """Linear, then `op` on [2, 4, 16], then Linear over the last axis."""
    add(name, lambda: Chain(nn.Linear(6, 16), made(op), nn.Linear(reads, 5)), numbers(2, 4, 6), cut, **more)


def line(name: str, op: Callable[..., Tensor], reads: int = 16, cut: Mapping[str, int] = FIRST, **more: Any) -> None:
    """Convolution, then `op` on [2, 16, 12], then a convolution over channels."""
    add(name, lambda: Chain(Conv(1, 3, 16, 3), made(op), Conv(1, reads, 5, 1)), numbers(2, 3, 12), cut, **more)


def image(name: str, op: Callable[..., Tensor], reads: int = 16, cut: Mapping[str, int] = FIRST, **more: Any) -> None:
    """The same in two dimensions: `op` on [2, 16, 8, 8]."""
    add(name, lambda: Chain(Conv(2, 3, 16, 3), made(op), Conv(2, reads, 5, 1)), numbers(2, 3, 8, 8), cut, **more)


def volume(name: str, op: Callable[..., Tensor], reads: int = 16, cut: Mapping[str, int] = FIRST, **more: Any) -> None:
    """And in three: `op` on [2, 16, 4, 4, 4]."""
    add(name, lambda: Chain(Conv(3, 2, 16, 1), made(op), Conv(3, reads, 5, 1)), numbers(2, 2, 4, 4, 4), cut, **more)


def made(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A module of its own for every model that is built; functions have no state."""
    return copy.deepcopy(op) if isinstance(op, nn.Module) else op


def stays(reason: str, **more: str) -> dict[str, Any]:
    return {"cut": {}, "left": {"first": reason, **more}}
