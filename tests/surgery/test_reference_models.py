"""Whole models: the reference against physically smaller ones, and float64 whatever a model's own code asks for."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from secateur.surgery.proof.reference import Float64, RemovedIsNaN, run_float64, run_reference
from tests.surgery.test_reference import IN, NOTHING, OUT, Cut, assert_agrees, numbers, smaller, with_nan


def with_nan_inside(full: nn.Module, cuts: dict[str, Cut]) -> nn.Module:
    holed = copy.deepcopy(full)
    holed.load_state_dict({name: with_nan(tensor, cuts.get(name, {})) for name, tensor in full.state_dict().items()})
    return holed


def what_is_left(full: nn.Module, cuts: dict[str, Cut]) -> dict[str, Tensor]:
    return {name: smaller(tensor, cuts.get(name, {})) for name, tensor in full.state_dict().items()}


def both_sides(full: nn.Module, small: nn.Module, cuts: dict[str, Cut], x: Tensor, of_x: Cut = NOTHING) -> Any:
    """The outputs of the full model with NaN inside, and of the smaller model with what is left of it."""
    small.load_state_dict(what_is_left(full, cuts))
    holed = with_nan_inside(full, cuts)
    return run_reference(holed, (with_nan(x, of_x),), {}), run_float64(small, (smaller(x, of_x),), {})


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_head_of_multihead_attention(need_weights: bool) -> None:
    full = nn.MultiheadAttention(8, 4, batch_first=True).double().eval()
    nn.init.normal_(full.in_proj_bias)
    kept = [0, 1, 4, 5, 6, 7]  # of four heads two wide, without the second
    stacked = [8 * part + place for part in range(3) for place in kept]
    cuts = {"in_proj_weight": {0: stacked}, "in_proj_bias": {0: stacked}, "out_proj.weight": {1: kept}}
    x = numbers(2, 5, 8)
    output, weights = run_reference(with_nan_inside(full, cuts), (x, x, x), {"need_weights": need_weights})

    left = what_is_left(full, cuts)
    stacked_heads = F.linear(x, left["in_proj_weight"], left["in_proj_bias"]).view(2, 5, 3, 3, 2)
    query, key, value = stacked_heads.permute(2, 0, 3, 1, 4)
    attention = (query @ key.mT / math.sqrt(2)).softmax(-1)
    merged = (attention @ value).transpose(1, 2).reshape(2, 5, 6)
    assert_agrees(output, F.linear(merged, left["out_proj.weight"], left["out_proj.bias"]), {})
    if need_weights:
        assert_agrees(weights, attention.mean(1), {})


def test_the_fast_path_of_a_transformer_layer_is_not_taken() -> None:
    layer = partial(nn.TransformerEncoderLayer, 8, 2, batch_first=True, dtype=torch.float64)
    cuts = {"linear1.weight": {0: OUT}, "linear1.bias": {0: OUT}, "linear2.weight": {1: OUT}}
    full, small = (layer(dim_feedforward=width).eval() for width in (6, 3))
    assert_agrees(*both_sides(full, small, cuts, numbers(2, 5, 8)), {})


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_units_of_a_recurrent_layer(kind: type[nn.RNNBase], gates: int, bidirectional: bool) -> None:
    stacked = [6 * gate + unit for gate in range(gates) for unit in OUT]
    outputs = [*OUT, *(6 + unit for unit in OUT)] if bidirectional else OUT
    full, small = (
        kind(4, width, num_layers=2, bidirectional=bidirectional, dtype=torch.float64) for width in (6, len(OUT))
    )
    cuts: dict[str, Cut] = {}
    for name, _ in full.named_parameters():
        cuts[name] = {0: stacked}
        if "weight_hh" in name:
            cuts[name][1] = OUT
        elif "weight_ih_l1" in name:
            cuts[name][1] = outputs
    (sequence, state), (small_sequence, small_state) = both_sides(full, small, cuts, numbers(5, 3, 4))
    assert_agrees(sequence, small_sequence, {2: outputs})
    pairs = zip(state, small_state, strict=True) if kind is nn.LSTM else [(state, small_state)]
    for reference, physical in pairs:
        assert_agrees(reference, physical, {2: OUT})


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("parametrization", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_a_parametrized_layer(parametrization: Callable[[nn.Module], nn.Module], training: bool) -> None:
    full, small = (parametrization(nn.Conv1d(*widths, 3)).double().train(training) for widths in ((8, 6), (5, 3)))
    in_window = [3 * channel + place for channel in IN for place in range(3)]
    cuts = {
        "bias": {0: OUT},
        "parametrizations.weight.original": {0: OUT, 1: IN},
        "parametrizations.weight.original0": {0: OUT},
        "parametrizations.weight.original1": {0: OUT, 1: IN},
        "parametrizations.weight.0._u": {0: OUT},
        "parametrizations.weight.0._v": {0: in_window},
    }
    assert_agrees(*both_sides(full, small, cuts, numbers(2, 8, 7), {1: IN}), {1: OUT})


class Untouched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Hardswish(), nn.MaxPool2d(2), nn.Flatten(2))
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.memory = nn.LSTM(8, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.memory(self.attention(self.conv(x).mT))[0]


@pytest.mark.parametrize("run", [run_float64, run_reference])
def test_a_model_without_nan_gives_the_same_bits(run: Callable[..., Tensor]) -> None:
    model, x = Untouched().double().eval(), numbers(2, 3, 10, 10)
    assert torch.equal(run(model, (x,), {}), model(x))


class Casting(nn.Module):
    """Code as it is met in the wild, with casts to lower precisions; or the same without any."""

    def __init__(self, low: torch.dtype, lower: torch.dtype, hidden: int = 8) -> None:
        super().__init__()
        self.low, self.lower = low, lower
        self.linear, self.output = nn.Linear(8, hidden), nn.Linear(hidden, 2)
        self.table = torch.arange(3, dtype=torch.float32)[:, None]  # not a buffer: .double() leaves it alone

    def forward(self, x: Tensor) -> Tensor:
        kind = x.dtype
        x = self.linear(x).to(self.low)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True, dtype=self.low) + 1e-6)
        x = F.softmax(x, dim=-1, dtype=self.low).to(self.lower)
        summed = torch.zeros(x.shape, dtype=self.low)
        summed[1:] = x[1:] / 3
        angles = torch.arange(3) / 7 + torch.tensor([0.5], dtype=self.low)
        turned = torch.view_as_real(torch.polar(torch.ones(3), angles))[:, :1]
        return self.output((summed.type(kind) + x * turned.to(self.low) * self.table).to(kind))


@pytest.fixture
def double_by_default() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double_by_default")
@pytest.mark.parametrize("run", [run_float64, run_reference])
def test_casts_do_not_limit_the_precision(run: Callable[..., Tensor]) -> None:
    casting, plain = Casting(torch.float32, torch.bfloat16), Casting(torch.float64, torch.float64)
    plain.load_state_dict(casting.state_dict())
    x = torch.randn(3, 8, dtype=torch.float32)
    torch.testing.assert_close(run(casting, (x,), {}), plain(x.double()).detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("inference", [False, True], ids=["no grad", "inference mode"])
@pytest.mark.parametrize("order", [(Float64, RemovedIsNaN), (RemovedIsNaN, Float64)])
def test_the_modes_combine_in_either_order(order: tuple[Any, Any], inference: bool) -> None:
    full, small = (Casting(torch.float32, torch.float16, hidden).double() for hidden in (8, 5))
    cuts = {"linear.weight": {0: IN}, "linear.bias": {0: IN}, "output.weight": {1: IN}}
    x = numbers(3, 8)
    _, expected = both_sides(full, small, cuts, x)
    holed = with_nan_inside(full, cuts)
    with torch.inference_mode() if inference else torch.no_grad(), ExitStack() as stack:
        for mode in order:
            stack.enter_context(mode())
        outcome = holed(x)
    assert_agrees(outcome, expected, {})


def test_what_has_no_dtype_of_its_own_becomes_float64() -> None:
    with Float64():
        made = [torch.zeros(2), torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float16), torch.arange(3) / 2]
        made += [torch.randn(2, dtype=torch.float32).half(), torch.ones(2, dtype=torch.int32).float()]
        assert {each.dtype for each in made} == {torch.float64}
        assert torch.zeros(2, dtype=torch.complex64).dtype == torch.complex128
        assert torch.ones(2, dtype=torch.int32).view(torch.float32).dtype == torch.float32  # the bits, not the number
    assert torch.zeros(2).dtype == torch.float32


def test_a_write_through_a_view_reaches_a_tensor_of_lower_precision() -> None:
    cache = torch.zeros(2, 3)
    with Float64():
        cache[:, 1] = torch.ones(2)
        cache.add_(torch.ones(()))
        assert (cache * 1).dtype == torch.float64
    assert cache.dtype == torch.float32
    assert cache[:, 1].tolist() == [2, 2]


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped product")
@pytest.mark.parametrize("cut", [{}, {1: IN}], ids=["whole", "cut"])
def test_grouped_products(cut: Cut) -> None:
    """`_grouped_mm` has no float64 kernel of its own."""
    offs, spans = torch.tensor([1, 4, 5], dtype=torch.int32), ((0, 1), (1, 4), (4, 5))
    x, experts = numbers(5, 8), numbers(3, 8, 4)
    batch, rows, columns = numbers(3, 2, 5), numbers(2, 5), numbers(5, 5)
    with RemovedIsNaN(), Float64():
        by_row = torch._grouped_mm(with_nan(x, cut), with_nan(experts, cut), offs=offs)
        by_column = torch._grouped_mm(batch, columns, offs=offs)
        by_term = torch._grouped_mm(rows, columns, offs=offs)
        batched = torch._grouped_mm(batch, columns.expand(3, 5, 5))
    x, experts = smaller(x, cut), smaller(experts, cut)
    assert_agrees(by_row, torch.cat([x[a:b] @ experts[i] for i, (a, b) in enumerate(spans)]), {})
    assert_agrees(by_column, torch.cat([batch[i] @ columns[:, a:b] for i, (a, b) in enumerate(spans)], 1), {})
    assert_agrees(by_term, torch.stack([rows[:, a:b] @ columns[a:b] for a, b in spans]), {})
    assert_agrees(batched, batch @ columns, {})


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ArithmeticError


def test_everything_is_as_before_after_a_failure() -> None:
    with pytest.raises(ArithmeticError):
        run_reference(Failing(), (torch.zeros(1),), {})
    assert torch.get_default_dtype() == torch.float32
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.backends.cudnn.enabled
    assert torch.is_grad_enabled()
