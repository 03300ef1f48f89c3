"""Planning and proving change nothing: not the model, its inputs, nor the random state."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn import functional as F

import secateur
from secateur.surgery.proof.dry_run import dry_run
from tests.support.cutting import backward, everything, image, net, random_states


@dataclasses.dataclass
class Sizes:
    dim: int = 16
    heads: int = 2


class Busy(nn.Module):
    """Does to itself, in every pass, all that a forward pass may do."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = Sizes()
        self.shape = (2, 8)
        self.conv = nn.Conv2d(3, self.sizes.dim, 3, padding=1)
        self.norm = nn.BatchNorm2d(self.sizes.dim)
        self.drop = nn.Dropout(0.5)
        self.output = nn.Linear(self.sizes.dim, 5)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("last", torch.zeros(1))
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.passes += 1
        self.last = x.mean().view(1)
        self.cache = self.norm(self.conv(x)) + random.random() + np.random.rand()
        x = self.drop(F.relu(self.cache)).view(x.shape[0], self.sizes.heads, self.sizes.dim // 2, -1).mean(-1)
        x = x.reshape(x.shape[0], self.sizes.dim) + torch.randn(1)
        return self.output(x)


def busy() -> Busy:
    model = Busy().train()
    model.norm.eval()
    model.conv.requires_grad_(False)
    model.output.register_forward_hook(lambda *_: None)
    model(image()).sum().backward()
    return model


@pytest.mark.parametrize(
    "work",
    [
        lambda model: secateur.inspect(model, image()),
        lambda model: secateur.plan_channels(model, image(), 0.5),
        lambda model: secateur.plan_channels(model, image(), 0.5, scope="global", iterations=2, score="random"),
        lambda model: secateur.plan_channels(model, image(), 0.5, score="activation"),
    ],
    ids=["inspect", "plan", "iterations", "activation"],
)
def test_planning_changes_nothing_in_the_model(work: Callable[[nn.Module], Any]) -> None:
    model = busy()
    before = everything(model)
    work(model)
    assert everything(model) == before


def test_planning_draws_no_random_numbers() -> None:
    model = busy()
    before = random_states()
    plan = secateur.plan_channels(model, image(), 0.5)
    secateur.apply(model, plan, verify=False)
    assert random_states() == before


def test_proving_draws_no_random_numbers_and_changes_nothing() -> None:
    model = net().train()
    backward(model)
    plan = secateur.plan_channels(model, image(), 0.5)
    before, numbers = everything(model), random_states()
    secateur.verify(model, plan)
    dry_run(model, plan)
    assert everything(model) == before
    assert random_states() == numbers


def test_planning_keeps_the_batch_statistics_of_a_model_with_unused_layers() -> None:
    """Those are looked for in a second pass, in training mode."""
    model = net()
    model.unused = nn.Linear(3, 3)
    before = everything(model)
    secateur.plan_channels(model, image(), 0.5)
    assert everything(model) == before


def test_a_pass_with_gradients_enabled_is_not_started_by_planning() -> None:
    seen: list[bool] = []
    model = net()
    model.hidden.register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    secateur.plan_channels(model, image(), 0.5)
    assert torch.is_grad_enabled()
    assert seen
    assert not any(seen)


class WritesToItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 12)
        self.output = nn.Linear(12, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.embed(ids.add_(1).remainder_(50)))


def test_planning_keeps_inputs_that_the_model_writes_to() -> None:
    ids = torch.arange(10)
    secateur.plan_channels(WritesToItsInput(), ids, 0.5)
    assert torch.equal(ids, torch.arange(10))


def test_a_model_that_writes_to_its_input_is_proven() -> None:
    model = WritesToItsInput()
    assert secateur.verify(model, secateur.plan_channels(model, torch.arange(10), 0.5)).moved
