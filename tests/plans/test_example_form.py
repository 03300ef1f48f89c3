"""What a plan's file says of the example inputs: enough to make others like them, and nothing of their values."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from secateur.plans.example_form import form_of, inputs_of_form, read_form

CPU = torch.device("cpu")

EXAMPLES = {
    "a tensor": torch.randn(2, 3),
    "whole numbers": (torch.tensor([[3, 9, 4]]), torch.arange(5), torch.tensor(7, dtype=torch.int32)),
    "booleans": {"mask": torch.tensor([True, True]), "none": None},
    "nested": ([torch.ones(2, 2, dtype=torch.complex64)], {"scale": 0.5, "kind": "full", "of": (torch.zeros(0, 4), 3)}),
    "half": torch.ones(4, dtype=torch.bfloat16),
    "huge numbers": torch.tensor([2**40, -(2**50)]),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_inputs_of_the_form_have_the_form(name: str) -> None:
    form = form_of(EXAMPLES[name])
    assert form is not None
    through_a_file = read_form(json.loads(json.dumps(form)))
    assert through_a_file == form
    assert form_of(inputs_of_form(through_a_file, CPU)) == form


def test_whole_numbers_rise_from_the_lowest_to_the_highest() -> None:
    form = form_of((torch.tensor([[7, 2, 5, 2], [3, 3, 3, 3]]), torch.arange(6)))
    ids, positions = inputs_of_form(form, CPU)
    assert ids.tolist() == [[2, 3, 5, 7]] * 2
    assert positions.tolist() == list(range(6))


def test_no_value_of_the_inputs_is_in_the_form() -> None:
    assert form_of(torch.full((3,), 0.123456)) == form_of(torch.zeros(3))


@pytest.mark.parametrize(
    "inputs",
    [object(), (torch.zeros(2), object()), {1: torch.zeros(2)}, {"x": {2: 1}}, torch.empty(1 << 25, device="meta"), 3],
    ids=["object", "object within", "number as name", "number as key", "too large", "a number alone"],
)
def test_other_inputs_have_no_form(inputs: Any) -> None:
    assert form_of(inputs) is None


def tensor(**changes: Any) -> dict[str, Any]:
    return {"tensor": {"shape": [2, 3], "dtype": "int64", "low": 0, "high": 9, **changes}}


FORGED = {
    "terabytes": tensor(shape=[1 << 40]),
    "terabytes in parts": {"list": [tensor(shape=[1 << 24])] * 40},
    "a negative length": tensor(shape=[-1]),
    "no dtype": tensor(dtype="Tensor"),
    "upside down": tensor(low=5, high=1),
    "beyond the dtype": tensor(dtype="uint8", high=256),
    "beyond all numbers": tensor(high=1 << 60),
    "a range of floats": tensor(dtype="float32", high=2),
    "two kinds": {"list": [], "tuple": []},
    "no kind": {"set": []},
    "a bare number": 3,
    "a bare list": [3],
    "infinite": {"list": [float("inf")]},
    "deep": json.loads('{"list": [' * 50 + "]}" * 50),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_form_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"form|large|range|none of|negative"):
        read_form(FORGED[name])
