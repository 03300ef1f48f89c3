"""Code in TorchScript: what it computes is cut like any other, and the sizes that it reads stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur
from tests.support.torchscript import script, trace


@script
def gated(x: Tensor, gate: Tensor) -> Tensor:
    return x * torch.sigmoid(gate)


@script
def of_one_size(x: Tensor) -> Tensor:
    return x / x.size(-1) ** 0.5


@script
def of_its_length(x: Tensor) -> Tensor:
    return x / len(x[0])


@script
def of_all_sizes(x: Tensor) -> Tensor:
    return x / x.shape[1]


@script
def of_another_tensor(x: Tensor) -> Tensor:
    y = torch.relu(x)
    return y / y.size(1)


@script
def of_elements(x: Tensor) -> Tensor:
    return x / x.numel()


@script
def in_a_list(xs: list[Tensor]) -> Tensor:
    width = 0
    for x in xs:
        width += x.size(-1)
    return xs[0] / width


@script
def size(x: Tensor) -> int:
    return x.size(-1)


@script
def times(x: Tensor, number: int) -> Tensor:
    return x * number


@script
def of_the_batch(x: Tensor) -> Tensor:
    return x / x.size(0)


traced = trace(lambda x: x / x.shape[1], torch.randn(2, 16))

KEEPS_ALL: dict[str, Callable[[Tensor], Any]] = {
    "a size": of_one_size,
    "a length": of_its_length,
    "all sizes": of_all_sizes,
    "a result's size": of_another_tensor,
    "the elements": of_elements,
    "a list": lambda x: in_a_list([x, x]),
    "returned": lambda x: x * size(x),
    "given": lambda x: times(x, x.shape[1]),
    "traced": traced,
}
CUTS: dict[str, Callable[[Tensor], Any]] = {
    "no size": lambda x: gated(x, x),
    "by name": lambda x: gated(gate=x, x=x),
    "the batch": of_the_batch,
    "a literal": lambda x: times(x, 3),
}


class Net(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.function = function if isinstance(function, nn.Module) else lambda x: function(x)  # a script has no copies

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self.second(self.first(x))))


def cut_widths(model: nn.Module) -> dict[str, int]:
    x = torch.randn(4, 6)
    plan = secateur.plan_channels(model, x, 0.5)
    assert secateur.verify(model, plan).moved
    secateur.apply(model, plan)(x)
    return {name: len(cut.kept[0]) for name, cut in plan.tensors.items() if 0 in cut.kept and name.endswith("weight")}


@pytest.mark.parametrize("name", KEEPS_ALL)
def test_a_size_that_scripted_code_reads_stays(name: str) -> None:
    assert "second.weight" not in cut_widths(Net(KEEPS_ALL[name]))


@pytest.mark.parametrize("name", CUTS)
def test_what_scripted_code_does_not_measure_is_cut(name: str) -> None:
    assert cut_widths(Net(CUTS[name])) == {"first.weight": 8, "second.weight": 8}


def test_the_sizes_that_are_read_stay_and_no_others() -> None:
    assert cut_widths(Net(of_one_size)) == {"first.weight": 8}
    left = {item.name: item.reason for item in secateur.inspect(Net(of_one_size), torch.randn(4, 6)).left_alone}
    assert left["second"] == "its size is used for something else, too (`TorchScript of_one_size`)"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class ScaledBlock(Block):
    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        return self.down(y / y.size(-1))


def test_the_layers_of_a_scripted_part_are_cut() -> None:
    widths = cut_widths(Net(script(Block())))
    assert widths == {"first.weight": 8, "second.weight": 8, "function.up.weight": 16, "function.down.weight": 8}


def test_a_scripted_part_that_reads_sizes_stays() -> None:
    with pytest.raises(secateur.UsageError, match="TorchScript forward"):
        cut_widths(Net(script(ScaledBlock())))
