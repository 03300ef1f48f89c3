"""Units that others make up for exactly: after the cut and a repair the model gives what it gave."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import secateur


@torch.no_grad()
def make_redundant(*tensors: Tensor | None, outputs: int = 6) -> None:
    """Along the first axis: the last unit is dead, and the one before it does what unit 0 does."""
    for tensor in tensors:
        if tensor is not None:
            tensor[outputs - 2] = tensor[0]
            tensor[outputs - 1] = 0


def assert_recovered(model: nn.Module, x: Tensor, kept: dict[str, Any], near: float = 1e-8) -> secateur.Repaired:
    model = model.to(x.dtype).eval()
    with torch.no_grad():
        wanted = model(x)
        plan = secateur.plan_channels(model, x[:2], keep_indices=kept)
        repaired = secateur.repair(model, plan, x, progress=False)
        assert plan.parameters[1] == sum(p.numel() for p in model.parameters()) < plan.parameters[0]
        assert float((model(x) - wanted).norm() / wanted.norm()) < near
    return repaired


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_linear() -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.GELU(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    make_redundant(model[0].weight, model[0].bias)
    assert_recovered(model, rows(96, 5), {"0": [0, 1, 2, 3]})


def test_a_linear_combination_of_kept_units() -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 4))
    with torch.no_grad():
        model[0].weight[5] = model[0].weight[:5].T @ torch.arange(5.0)
        model[0].bias[5] = 3
    assert_recovered(model, rows(96, 5), {"0": [0, 1, 2, 3, 4]})


class Dead(nn.Module):
    """A unit that is always the same, which a bias can be."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x)))


def test_a_constant_unit() -> None:
    model = Dead()
    with torch.no_grad():
        model.first.weight[3], model.first.bias[3] = 0, 0.7
    assert_recovered(model, rows(96, 5), {"first": [0, 1, 2, 4, 5]})


@pytest.mark.parametrize(
    "second",
    [
        nn.Conv2d(6, 4, 3, padding=1),
        nn.Conv2d(6, 4, 3, stride=2, dilation=2, padding=2, bias=False),
        nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1),
        nn.Sequential(nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 4, 1)),
    ],
    ids=["plain", "strided and dilated", "transposed", "depthwise"],
)
def test_convolutions(second: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), second)
    make_redundant(model[0].weight, model[0].bias)
    if isinstance(second, nn.Sequential):
        make_redundant(second[0].weight, second[0].bias)
    assert_recovered(model, rows(24, 3, 8, 8), {"0": [0, 1, 2, 3]})


def test_grouped_convolution() -> None:
    """In each group the last channel does what the first does."""
    model = nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.Conv1d(8, 6, 3, groups=2))
    with torch.no_grad():
        for tensor in (model[0].weight, model[0].bias):
            tensor[3], tensor[7] = tensor[0], tensor[4]
    assert_recovered(model, rows(48, 3, 9), {"0": [0, 1, 2, 4, 5, 6]})


def test_residual_stream() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 6), nn.Linear(6, 8)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(F.gelu(self.up(self.norm(x))))

    model = nn.Sequential(Block(), Block())
    make_redundant(model[0].up.weight, model[0].up.bias)
    repaired = assert_recovered(model, rows(96, 8), {"0.up": [0, 1, 2, 3]})
    assert {layer.name for layer in repaired.layers} >= {"0.down.weight"}


class Attention(nn.Module):
    """Two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 12) for _ in range(3))
        self.output = nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, n, 2, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        return self.output(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, -1))


def test_values_of_attention() -> None:
    model = Attention()
    with torch.no_grad():
        for tensor in (model.value.weight, model.value.bias):
            tensor[5], tensor[11] = tensor[0], tensor[6]
    assert_recovered(model, rows(32, 5, 8), {"value": [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]})


def test_multi_head_attention_module() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(8, 4, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.attention(x, x, x, need_weights=False)[0])

    model = Model()
    make_redundant(model.attention.out_proj.weight, model.attention.out_proj.bias, outputs=8)
    assert_recovered(model, rows(32, 5, 8), {"attention.out_proj": range(6)})


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_recurrent(kind: Any, gates: int, dtype: torch.dtype) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.head = kind(4, 6, batch_first=True), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cells(x)[0])

    model = Model()
    with torch.no_grad():
        for tensor in model.cells.parameters():
            by_gate = tensor.view(gates, 6, -1)
            by_gate[:, 4], by_gate[:, 5] = by_gate[:, 0], 0
    stay = [6 * gate + unit for gate in range(gates) for unit in range(4)]
    near = 1e-8 if dtype == torch.float64 else 1e-3
    assert_recovered(model, rows(48, 6, 4).to(dtype), {"cells.weight_ih_l0": stay}, near)
