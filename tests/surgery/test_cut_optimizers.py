"""The optimizer's state goes along with a cut."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor, nn

import secateur
from tests.support.cutting import Net, assert_same_values, backward, image, net, selected, values

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01, amsgrad=True),
}


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_momenta_are_cut_along(name: str) -> None:
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    stepped(model, optimizer, 3)
    before = {name: copy.deepcopy(optimizer.state[parameter]) for name, parameter in model.named_parameters()}
    plan = secateur.plan_channels(model, image(), 0.5)
    secateur.apply(model, plan, optimizer=optimizer)
    for name, parameter in model.named_parameters():
        assert optimizer.state[parameter].keys() == before[name].keys()
        for key, old in before[name].items():
            shaped = isinstance(old, Tensor) and old.dim() > 0 and name in plan.tensors
            expected = selected(old, plan.tensors[name]) if shaped else old
            assert torch.equal(torch.as_tensor(optimizer.state[parameter][key]), torch.as_tensor(expected)), (name, key)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_as_in_a_model_built_small(name: str) -> None:
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    stepped(model, optimizer, 3)
    secateur.apply(model, secateur.plan_channels(model, image(), 0.5), optimizer=optimizer)
    small = Net(8, 6).eval()
    small.load_state_dict(model.state_dict())
    small_optimizer = OPTIMIZERS[name](small.parameters())
    small_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    stepped(model, optimizer)
    stepped(small, small_optimizer)
    assert_same_values(model, values(small))


def test_state_that_cannot_be_cut_starts_anew() -> None:
    model = net()
    optimizer = torch.optim.Adafactor(model.parameters(), 0.01)
    stepped(model, optimizer, 2)
    secateur.apply(model, secateur.plan_channels(model, image(), 0.5), optimizer=optimizer)
    assert not optimizer.state[model.hidden.weight], "row and column factors have other shapes than the weight"
    assert optimizer.state[model.output.bias], "what is not cut keeps its state"
    before = values(model)
    stepped(model, optimizer)
    assert not torch.equal(model.hidden.weight, before["hidden.weight"])


def test_an_optimizer_that_was_not_given_still_refers_to_the_parameters() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    secateur.apply(model, secateur.plan_channels(model, image(), 0.5))
    before = values(model)
    stepped(model, optimizer)
    assert not torch.equal(model.conv.weight, before["conv.weight"])


def test_an_optimizer_does_not_go_with_masks() -> None:
    model = net()
    masks = secateur.plan_weights(model, 0.5)
    with pytest.raises(secateur.UsageError, match="belong to plans of plan_channels"):
        secateur.apply(model, masks, optimizer=torch.optim.SGD(model.parameters(), 0.1))
