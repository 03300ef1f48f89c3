"""Two models to cut, and what tells whether anything about them changed."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.plans.plan import TensorCut


class Net(nn.Module):
    """Two groups: the channels of `conv` and the features of `hidden`."""

    def __init__(self, width: int = 16, hidden: int = 12) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.hidden = nn.Linear(width, hidden)
        self.output = nn.Linear(hidden, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.output(F.relu(self.hidden(x)))


class Heads(nn.Module):
    """Attention whose sizes are attributes that its forward pass reads."""

    def __init__(self, dim: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (
            f(x).view(b, n, self.heads, self.head_dim).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return self.output(y.transpose(1, 2).reshape(b, n, self.heads * self.head_dim))


def image(batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def sequence() -> Tensor:
    return torch.randn(2, 7, 24, generator=torch.Generator().manual_seed(0))


def net() -> Net:
    """With statistics and scales of its own for every channel."""
    model = Net()
    nn.init.normal_(model.norm.weight)
    nn.init.normal_(model.norm.bias)
    nn.init.normal_(model.norm.running_mean)
    nn.init.uniform_(model.norm.running_var, 0.5, 1.5)
    return model.eval()


def backward(model: nn.Module) -> None:
    model(image()).square().mean().backward()


def described(value: Any) -> Any:
    """Something that is equal only for the very same object with the very same contents."""
    if isinstance(value, Tensor):
        data = value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return (
            id(value),
            value.dtype,
            tuple(value.shape),
            value.requires_grad,
            data,
            described(value.grad if value.is_leaf else None),
        )
    if isinstance(value, dict):
        return {key: described(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value), [described(item) for item in value]
    if dataclasses.is_dataclass(value):
        return id(value), described(vars(value))
    return type(value), value if isinstance(value, int | float | str) else id(value)


def everything(model: nn.Module) -> dict[str, Any]:
    """Every attribute, parameter, buffer, gradient, hook and flag of every module."""
    return {
        path: {key: described(dict(item) if key.endswith("hooks") else item) for key, item in vars(module).items()}
        for path, module in model.named_modules()
    }


def states(optimizer: torch.optim.Optimizer) -> Any:
    return [described(list(optimizer.state.keys())), described(list(optimizer.state.values()))]


def random_states() -> Any:
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_values(model: nn.Module, expected: dict[str, Tensor]) -> None:
    found = model.state_dict()
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def selected(tensor: Tensor, cut: TensorCut) -> Tensor:
    for axis, kept in cut.kept.items():
        tensor = tensor.index_select(axis, torch.from_numpy(kept))
    return tensor
