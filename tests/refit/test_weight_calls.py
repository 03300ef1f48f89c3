"""Every operator's call in its one form gives what the operator gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.refit.lockstep import Stop
from secateur.refit.watching import Functions, Operators, Parameters, Watch
from secateur.refit.weight_calls import WeightCall
from tests.refit.layers import PRODUCTS, Case, convolutions


class Notes:
    """In the place of a walker: never waits."""

    def __init__(self) -> None:
        self.stops: list[Stop] = []

    def pause(self, stop: Stop) -> None:
        self.stops.append(stop)


def calls_of(model: nn.Module, *inputs: Any) -> list[tuple[str, WeightCall]]:
    notes = Notes()
    watch = Watch(notes.pause, Parameters(model), {})
    with torch.no_grad(), Operators(watch), Functions(watch):
        model(*inputs)
    return [(stop.name, stop.call) for stop in notes.stops if isinstance(stop.call, WeightCall)]


def in_one_form(call: WeightCall) -> Tensor:
    """(positions, groups * outputs)."""
    given = call.reads_at(torch.arange(call.positions)) @ call.entries(call.weight).transpose(1, 2)
    given = given.transpose(0, 1).flatten(1)
    return given if call.bias is None else given + call.bias


def assert_form_is_exact(call: WeightCall) -> None:
    with torch.no_grad():
        given = call.outputs_at(call.run(), torch.arange(call.positions))
        torch.testing.assert_close(in_one_form(call), given, rtol=1e-12, atol=1e-12)
        some = torch.arange(call.positions).flip(0)[::2]
        assert torch.equal(call.outputs_at(call.run(), some), given[some])
        assert torch.equal(call.reads_at(some), call.reads_at(torch.arange(call.positions))[:, some])
        entries = call.entries(call.weight)
        factors = torch.randn(entries.shape[:2], dtype=entries.dtype)
        assert torch.equal(call.entries(call.weight * call.by_output(factors.flatten())), entries * factors[..., None])


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    case = PRODUCTS[name]()
    [(weight, call)] = calls_of(case.layer, case.inputs(6))
    assert weight == "weight"
    assert call.positions * call.entries(call.weight).shape[:2].numel() == case.layer(case.inputs(6)).numel()
    assert_form_is_exact(call)


@settings(max_examples=60)
@given(convolutions())
def test_convolutions(case: Case) -> None:
    [(_, call)] = calls_of(case.layer, case.inputs(2))
    assert_form_is_exact(call)


def test_projections_of_multi_head_attention_are_parts_of_one_weight() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).double().eval()
    x, memory = torch.randn(3, 5, 8).double(), torch.randn(3, 4, 8).double()
    together = calls_of(attention, x, x, x)
    assert [(name, tuple(call.weight.shape)) for name, call in together] == [
        ("in_proj_weight", (24, 8)),
        ("out_proj.weight", (8, 8)),
    ]
    apart = calls_of(attention, x, memory, memory)
    assert [(name, tuple(call.weight.shape)) for name, call in apart] == [
        ("in_proj_weight", (8, 8)),
        ("in_proj_weight", (16, 8)),
        ("out_proj.weight", (8, 8)),
    ]
    for _, call in together + apart:
        assert_form_is_exact(call)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_give_what_torch_gives(kind: Any, dtype: torch.dtype) -> None:
    """float32 LSTMs are one operator, which a pass takes apart."""
    layer = kind(4, 3, num_layers=2, bidirectional=True, batch_first=True).to(dtype).eval()
    x, notes = torch.randn(2, 5, 4, dtype=dtype), Notes()
    watch = Watch(notes.pause, Parameters(layer), {})
    with torch.no_grad():
        expected, *_ = layer(x)
        with Operators(watch), Functions(watch):
            given, *_ = layer(x)
    torch.testing.assert_close(given, expected)
    assert {stop.name for stop in notes.stops} == {name for name, _ in layer.named_parameters() if "weight" in name}


def test_what_is_no_contraction_with_a_parameter_is_not_stopped_at() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(4))
            self.table = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.table * 2) + F.embedding(x.argmax(1), self.table) * self.scale

    other, found = Other(), dict[str, str]()
    watch = Watch(Notes().pause, Parameters(other), found)
    with torch.no_grad(), Operators(watch), Functions(watch):
        other(torch.randn(3, 4))
    assert found == {"table": "mul reads it, too", "scale": "mul reads it, too"}
