"""What the tests of saved engines share: models that become engines in different ways, and when two are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from transformers import BertConfig, BertForSequenceClassification

from secateur.base.inputs import as_call
from secateur.base.tensor_trees import copied
from secateur.examples.mobilenet_v2 import InvertedResidual
from secateur.examples.small_resnet import SmallResNet
from secateur.sparse.engine import SparseEngine, sparse_engine
from tests.support.checkpoints import bits
from tests.support.sparse_models import masked


class Branching(nn.Module):
    """Decides by its numbers which way to go, so that it does not become a graph, and holds one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 8)
        self.again = self.linear
        self.rarely = nn.Linear(8, 8, bias=False)
        self.shift = torch.arange(8) / 8

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.conv(x))).mean((2, 3)) + self.shift
        return self.again(self.linear(y)) if x.mean() > 0 else self.rarely(y)


class Peculiar(nn.Module):
    """Looks at one of its tensors while it is captured, makes another, and holds some outside its state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale, self.steps = torch.tensor(2.5), torch.tensor(3)
        self.shift = torch.arange(8) / 8
        self.register_buffer("phase", torch.linspace(0, 1, 8), persistent=False)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, offset: float = 0.0) -> dict[str, Any]:
        self.calls += 1
        y = self.second(F.relu(self.first(x))) * float(self.scale) + self.shift + offset
        for _ in range(int(self.steps)):
            y = y + self.phase * torch.tensor([0.5] * 8)
        return {"scores": y, "calls": [self.calls * 1]}


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True))
        self.block, self.pool = InvertedResidual(8, 8, 1, 6), nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.block(self.stem(x))).mean((2, 3))


class CalledTwice(nn.Module):
    """Two layers of the engine with one weight: a norm is folded into the first call of it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.conv(F.relu(self.norm(self.conv(x)))))


def resnet() -> nn.Module:
    return SmallResNet((8, 16))


def bert() -> nn.Module:
    sizes = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 20}
    return BertForSequenceClassification(BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2))


def tokens(batch: int) -> dict[str, Tensor]:
    return {"input_ids": torch.arange(6 * batch).reshape(batch, 6) % 30, "attention_mask": torch.ones(batch, 6).long()}


ENGINES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any]]] = {
    "graph": (resnet, lambda batch: torch.randn(batch, 1, 28, 28)),
    "transformer": (bert, tokens),
    "depthwise": (Depthwise, lambda batch: torch.randn(batch, 3, 16, 16)),
    "shared": (CalledTwice, lambda batch: torch.randn(batch, 8, 6, 6)),
    "peculiar": (Peculiar, lambda batch: (torch.randn(batch, 8), 0.5)),
    "in place": (Branching, lambda batch: torch.randn(batch, 4, 8, 8).abs()),
}


def engine_of(kind: str, zeros: float = 0.9, block: int = 1) -> SparseEngine:
    build, inputs = ENGINES[kind]
    return sparse_engine(masked(build(), zeros, block), inputs(2), progress=False)


def outputs(engine: nn.Module, inputs: Any) -> list[object]:
    """To the last bit."""
    args, kwargs = copied(*as_call(inputs))
    return [bits(each) for each in tree_leaves(engine(*args, **kwargs))]
