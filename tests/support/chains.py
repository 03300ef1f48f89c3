"""Small models with few groups, and what a plan keeps of them."""

from __future__ import annotations

import copy
from collections import OrderedDict
from itertools import pairwise

import torch
import torch.distributed.fsdp
from torch import Tensor, nn
from torch.nn import functional as F

import secateur


def image(channels: int = 3, size: int = 8) -> Tensor:
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))


def rows(features: int, count: int = 4) -> Tensor:
    return torch.randn(count, features, generator=torch.Generator().manual_seed(0))


def tokens(vocabulary: int = 50) -> Tensor:
    return torch.randint(vocabulary, (2, 12), generator=torch.Generator().manual_seed(0))


def chain(width: int = 16) -> nn.Sequential:
    """Convolution, norm, ReLU, convolution: one group, between the input and the output."""
    layers = {
        "first": nn.Conv2d(3, width, 3),
        "norm": nn.BatchNorm2d(width),
        "relu": nn.ReLU(),
        "second": nn.Conv2d(width, 4, 3),
    }
    model = nn.Sequential(OrderedDict(layers))
    nn.init.normal_(model.norm.weight)
    return model


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers "0", "2", "4", … with ReLUs between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Residual(nn.Module):
    """Two layers whose outputs are added and one that reads the sum."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.branch = nn.Conv2d(width, width, 1)
        self.output = nn.Conv2d(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return self.output(x + self.branch(x))


class Embedded(nn.Module):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.output = nn.Linear(width, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(F.relu(self.embed(ids)))


def kept(plan: secateur.Plan, name: str, axis: int = 0) -> list[int]:
    return plan.tensors[name].kept[axis].tolist()


def largest(scores: Tensor, count: int) -> list[int]:
    return sorted(scores.detach().double().argsort(descending=True)[:count].tolist())


def after(plan: secateur.Plan) -> dict[str, int]:
    return {group.name: group.after for group in plan.groups}


def cut_copy(model: nn.Module, plan: secateur.Plan) -> nn.Module:
    return secateur.apply(copy.deepcopy(model), plan)
