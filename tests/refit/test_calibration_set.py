"""Which examples a repair learns from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import secateur
from secateur.refit.calibration_set import MOST_BATCHES, calibration_set, count_examples, share_of


def rows(count: int, width: int = 3) -> Tensor:
    return torch.arange(count * width, dtype=torch.float32).reshape(count, width)


def found(batches: Any, examples: int = 512, memory: float = 1e9, model: nn.Module | None = None) -> list[Any]:
    return calibration_set(model or nn.Linear(3, 2), batches, examples, memory)


@pytest.mark.parametrize(
    "batches", [rows(50), [rows(50)], list(rows(50).split(7)), DataLoader(TensorDataset(rows(50)), 8)]
)
def test_every_example_is_there_once_whatever_holds_it(batches: Any) -> None:
    parts = [part[0] if isinstance(part, list) else part for part in found(batches)]
    assert [len(part) for part in parts] == [13, 12, 13, 12]
    assert torch.equal(torch.cat(parts).sort(0).values, rows(50))


def test_what_is_held_back_is_like_the_rest_where_data_is_sorted() -> None:
    sorted_by_class = rows(40)
    parts = found(sorted_by_class)
    assert torch.equal(parts[-1], sorted_by_class[3::4])


@pytest.mark.parametrize("processes", [2, 3, 5])
def test_processes_share_examples_and_hold_the_same_ones_back(processes: int) -> None:
    whole = list(rows(103).split(10))
    shares = [share_of(whole, process, processes) for process in range(processes)]
    assert torch.equal(torch.cat([batch for share in shares for batch in share]), rows(103))
    held_back = torch.cat([found(share)[-1] for share in shares])
    assert torch.equal(held_back, found(whole)[-1])


def test_no_more_are_read_than_are_used() -> None:
    read: list[int] = []

    def endless() -> Any:
        while True:
            read.append(1)
            yield rows(8)

    assert count_examples(found(endless(), examples=20)) == 20
    assert len(read) == 3


def test_memory_decides_how_many() -> None:
    assert count_examples(found(rows(400), memory=0)) == 2
    assert count_examples(found(rows(400), memory=2 * 4 * 2 * 100)) == 100


def test_two_examples_are_one_to_fit_and_one_to_hold_back() -> None:
    assert [len(part) for part in found(rows(2))] == [1, 1]
    assert [len(part) for part in found([rows(1), rows(1)])] == [1, 1]


def test_shapes_that_differ_stay_apart() -> None:
    class Any3(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum(1)

    batches = [rows(4, width) for width in (3, 5, 3, 5, 7)]
    shapes = sorted(tuple(part.shape) for part in found(batches, model=Any3()))
    assert sum(count for count, _ in shapes) == 20
    assert {width for _, width in shapes} == {3, 5, 7}
    many = [rows(1, width) for width in range(3, 43)]
    assert len(found(many, model=Any3())) == MOST_BATCHES


def test_what_is_not_of_the_examples_goes_with_every_part() -> None:
    class Shifted(nn.Module):
        def forward(self, x: Tensor, shift: Tensor, flag: bool = False) -> Tensor:
            return x + shift

    parts = found([{"x": rows(8), "shift": torch.ones(3), "flag": True}], model=Shifted())
    assert [len(part["x"]) for part in parts] == [2, 2, 2, 2]
    assert all(part["flag"] is True and part["shift"].shape == (3,) for part in parts)


@pytest.mark.parametrize(
    ("batches", "sentence"),
    [
        ({"x": rows(8)}, "The calibration data is a dict; give batches of inputs"),
        ("data", "The calibration data is a str; give batches of inputs"),
        (7, "The calibration data is a int; give batches of inputs"),
        ([7], "example_inputs is a int"),
        ([()], "A calibration batch holds no tensor with examples; give the model's inputs"),
        ([rows(8) / 0], "A calibration batch holds NaN or infinite numbers; leave such examples out"),
    ],
)
def test_what_is_no_data(batches: Any, sentence: str) -> None:
    with pytest.raises(secateur.UsageError, match=sentence):
        found(batches)
