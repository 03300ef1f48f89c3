"""Unusual outputs, and sizes held in a shared config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cnn import conv_bn, head
from .registry import architecture, floats, images, together


@dataclass
class ModelOutput:
    """What a library model returns."""

    logits: Tensor
    features: Tensor | None = None
    attentions: tuple[Tensor, ...] | None = None


@architecture("output_dataclass", images())
class DataclassOutput(nn.Module):
    """Returns a dataclass with a None inside."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv_bn(3, 16), conv_bn(16, 24), nn.Conv2d(24, 8, 1))
        self.classifier = head(8)

    def forward(self, x: Tensor) -> ModelOutput:
        features = self.features(x)
        return ModelOutput(self.classifier(features), features=features)


@architecture("output_dict", images())
class DictOutput(nn.Module):
    """Returns a nested dict with a None and a number inside."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv_bn(3, 16), conv_bn(16, 24))
        self.out = head(24)
        self.aux = nn.Conv2d(24, 2, 1)

    def forward(self, x: Tensor) -> dict[str, Any]:
        features = self.features(x)
        return {"out": self.out(features), "aux": {"map": self.aux(features)}, "loss": None, "scale": 1.0}


@dataclass
class MLPConfig:
    """Sizes read again at every forward."""

    dim: int = 32
    heads: int = 4
    hidden: int = 64


class ConfigBlock(nn.Module):
    """Reads its sizes from the shared config while it runs."""

    def __init__(self, config: MLPConfig) -> None:
        super().__init__()
        self.config = config
        self.up = nn.Linear(config.dim, config.hidden)
        self.down = nn.Linear(config.hidden, config.dim)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x).view(x.shape[0], self.config.heads, self.config.hidden // self.config.heads)
        return x + self.down(F.relu(y).reshape(x.shape[0], self.config.hidden))


@architecture("shared_config", floats(3, 12))
class SharedConfig(nn.Module):
    """Blocks that share one config object."""

    def __init__(self) -> None:
        super().__init__()
        config = MLPConfig()
        self.inp = nn.Linear(12, config.dim)
        self.blocks = nn.Sequential(ConfigBlock(config), ConfigBlock(config))
        self.out = nn.Linear(config.dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.blocks(self.inp(x)))


@architecture("mlp_batchnorm", floats(4, 12))
def mlp_batchnorm() -> nn.Module:
    """Build a plain MLP with batch norms."""
    return nn.Sequential(
        nn.Linear(12, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 48),
        nn.BatchNorm1d(48),
        nn.ReLU(),
        nn.Linear(48, 10),
    )


class Tower(nn.Module):
    """One side of a contrastive model."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.net(x), dim=-1)


@architecture("two_towers", together(floats(4, 12), floats(4, 20, seed=1)))
class TwoTowers(nn.Module):
    """Cosine similarities of two towers, scaled by a learnt temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.left = Tower(12)
        self.right = Tower(20)
        self.logit_scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.logit_scale.exp() * self.left(a) @ self.right(b).t()
