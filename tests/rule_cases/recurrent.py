"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .registry import add, numbers


class Recurrent(nn.Module):
    def __init__(self, layer: nn.RNNBase, reads: int, *, read_state: bool = False, learned_state: bool = False) -> None:
        super().__init__()
        self.first, self.cell, self.last = nn.Linear(6, 16), layer, nn.Linear(reads, 5)
        self.read_state = read_state
        self.state = nn.Parameter(torch.randn(layer.num_layers, 1, layer.hidden_size)) if learned_state else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.state is not None:
            out, state = self.cell(x, self.state.expand(-1, x.shape[1], -1).contiguous())
        else:
            out, state = self.cell(x)
        if self.read_state:
            state = state[0] if isinstance(state, tuple) else state
            return self.last(state[0])
        return self.last(out)


CELL = {
    "first.weight": 0,
    "cell.weight_ih_l0": 1,
    "cell.weight_ih_l0#2": 0,
    "cell.weight_hh_l0": 0,
    "cell.weight_hh_l0#2": 1,
    "last.weight": 1,
}
KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": lambda *sizes, **more: nn.RNN(*sizes, nonlinearity="relu", **more),
}
for name, cell in KINDS.items():
    add(name, lambda f=cell: Recurrent(f(16, 12), 12), numbers(5, 2, 6), {**CELL, "cell.bias_hh_l0": 0})
add("gru without biases", lambda: Recurrent(nn.GRU(16, 12, bias=False), 12), numbers(5, 2, 6), CELL)
add(
    "lstm of two layers",
    lambda: Recurrent(nn.LSTM(16, 12, 2), 12),
    numbers(5, 2, 6),
    {**CELL, "cell.weight_ih_l1": 0, "cell.weight_ih_l1#2": 1},
)
add(
    "gru both ways",
    lambda: Recurrent(nn.GRU(16, 12, bidirectional=True), 24),
    numbers(5, 2, 6),
    {**CELL, "cell.weight_hh_l0_reverse": 1},
)
add(
    "lstm of two layers both ways",
    lambda: Recurrent(nn.LSTM(16, 12, 2, bidirectional=True), 24),
    numbers(5, 2, 6),
    {**CELL, "cell.weight_ih_l1": 1},
)
add("the last state of an lstm", lambda: Recurrent(nn.LSTM(16, 12), 12, read_state=True), numbers(5, 2, 6), CELL)
add(
    "gru from a learned state",
    lambda: Recurrent(nn.GRU(16, 12), 12, learned_state=True),
    numbers(5, 2, 6),
    {**CELL, "state": 2},
)
add(
    "gru of four layers from a learned state",
    lambda: Recurrent(nn.GRU(16, 12, 4), 12, learned_state=True),
    numbers(5, 2, 6),
    {**CELL, "state": 2},
)
add(
    "lstm with a projection",
    lambda: Recurrent(nn.LSTM(16, 12, proj_size=8), 8),
    numbers(5, 2, 6),
    {"first.weight": 0, "cell.weight_ih_l0": 0, "cell.weight_hr_l0": 0, "cell.weight_hr_l0#2": 1, "last.weight": 1},
)
