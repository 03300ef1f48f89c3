"""`secateur.rule`: operators that are not torch's own, taught by what they compute."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur
from secateur.capture import definitions

IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@torch.library.custom_op("secateur_tests::root_mean_square", mutates_args=())
def root_mean_square(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x * (x.square().mean(1, keepdim=True) + eps).rsqrt() * weight[:, None, None]


@torch.library.custom_op("secateur_tests::folded", mutates_args=())
def folded(x: Tensor, groups: int) -> Tensor:
    return x.unflatten(1, (groups, x.shape[1] // groups)).sum(2)


@torch.library.custom_op("secateur_tests::sixteenth", mutates_args=())
def sixteenth(x: Tensor) -> Tensor:
    """Holds a size that no argument tells."""
    return x.sum(1, keepdim=True) / 16


@torch.library.custom_op("secateur_tests::sum", mutates_args=())
def weighted_sum(x: Tensor, dim: int, keepdim: bool) -> Tensor:
    """Has the name of an operator of torch, and does something else."""
    return (x * torch.arange(x.shape[1]).view(-1, 1, 1)).sum(dim, keepdim)


@torch.library.custom_op("secateur_tests::halved_", mutates_args=("x",))
def halved_(x: Tensor) -> None:
    x.mul_(0.5)


class Sharpened(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, power: float) -> Tensor:
        return torch.from_numpy(x.softmax(1).numpy() ** power)  # leaves torch, as a C++ extension does


def in_plain_torch(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x * (x.square().mean(1, keepdim=True) + eps).rsqrt() * weight[:, None, None]


class Net(nn.Module):
    def __init__(self, operator: Callable[..., Tensor], *given: Any, reads: int = 16) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3), nn.Conv2d(reads, 5, 3)
        self.weight = nn.Parameter(torch.rand(16) + 0.5)
        self.groups = 4
        self.operator = operator

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.operator(self, self.first(x)))


@pytest.fixture(autouse=True)
def no_rules_are_left() -> Iterator[None]:
    before = dict(definitions._DEFINITIONS)
    yield
    definitions._DEFINITIONS.clear()
    definitions._DEFINITIONS.update(before)


def normed() -> Net:
    torch.manual_seed(0)
    return Net(lambda net, x: root_mean_square(x, net.weight)).eval()


def test_an_operator_without_a_rule_stays_whole() -> None:
    with pytest.raises(secateur.NothingToCut, match="no rule for this operator"):
        secateur.plan_channels(normed(), IMAGES, 0.5)


@pytest.mark.parametrize("called", [root_mean_square, torch.ops.secateur_tests.root_mean_square])
def test_a_definition_lets_channels_through_and_is_proven(called: Callable[..., Tensor]) -> None:
    secateur.rule("secateur_tests::root_mean_square")(in_plain_torch)
    torch.manual_seed(0)
    model = Net(lambda net, x: called(x, net.weight)).eval()
    plan = secateur.plan_channels(model, IMAGES, 0.5)
    assert plan.tensors["weight"].new_shape == (8,)
    assert secateur.verify(model, plan).moved
    by_hand = copy.deepcopy(model)
    kept = torch.from_numpy(plan.tensors["weight"].kept[0])
    by_hand.first.weight.data = by_hand.first.weight[kept]
    by_hand.first.bias.data = by_hand.first.bias[kept]
    by_hand.weight.data = by_hand.weight[kept]
    by_hand.last.weight.data = by_hand.last.weight[:, kept]
    secateur.apply(model, plan)
    with torch.no_grad():
        torch.testing.assert_close(model(IMAGES), by_hand(IMAGES))


def test_sizes_that_an_operator_is_given_follow_the_cut() -> None:
    secateur.rule("secateur_tests::folded")(lambda x, groups: x.unflatten(1, (groups, x.shape[1] // groups)).sum(2))
    torch.manual_seed(0)
    model = Net(lambda net, x: folded(x, net.groups), reads=4).eval()
    plan = secateur.plan_channels(model, IMAGES, 0.5)
    secateur.verify(model, plan)
    secateur.apply(model, plan)
    assert model.groups == 2
    assert model(IMAGES).shape == (2, 5, 4, 4)


def test_an_autograd_function_may_leave_torch() -> None:
    torch.manual_seed(0)
    model = Net(lambda net, x: Sharpened.apply(x, 2.0)).eval()
    with pytest.raises(secateur.NothingToCut, match="cannot see"):
        secateur.plan_channels(model, IMAGES, 0.5)
    secateur.rule(Sharpened)(lambda x, power: x.softmax(1) ** power)
    plan = secateur.plan_channels(model, IMAGES, 0.5)
    assert secateur.verify(model, plan).moved
    assert plan.tensors["last.weight"].new_shape[1] == 8


def test_a_rule_that_computes_something_else_is_refused() -> None:
    secateur.rule("secateur_tests::root_mean_square")(lambda x, weight, eps=1e-6: x * weight[:, None, None])
    with pytest.raises(secateur.UsageError, match=r"^The rule for secateur_tests.root_mean_square.default computes"):
        secateur.plan_channels(normed(), IMAGES, 0.5)
    secateur.rule("secateur_tests::root_mean_square")(lambda x, weight, eps=1e-6: x.mean(1))
    with pytest.raises(secateur.UsageError, match=r"shapes \[\(2, 6, 6\)\] instead of \[\(2, 16, 6, 6\)\]"):
        secateur.plan_channels(normed(), IMAGES, 0.5)


def test_an_operator_that_parts_from_its_rule_after_the_cut_is_refused() -> None:
    secateur.rule("secateur_tests::sixteenth")(lambda x: x.mean(1, keepdim=True))
    torch.manual_seed(0)
    model = Net(lambda net, x: sixteenth(x), reads=1).eval()
    before = copy.deepcopy(model.state_dict())
    plan = secateur.plan_channels(model, IMAGES, 0.5)
    with pytest.raises(secateur.ProofFailed, match="computes something else"):
        secateur.apply(model, plan)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_another_librarys_operator_is_not_taken_for_torchs_own() -> None:
    torch.manual_seed(0)
    model = Net(lambda net, x: weighted_sum(x, 1, True), reads=1).eval()
    with pytest.raises(secateur.NothingToCut, match="secateur_tests::sum"):
        secateur.plan_channels(model, IMAGES, 0.5)


def test_an_operator_that_writes_to_its_arguments_is_refused() -> None:
    secateur.rule("secateur_tests::halved_")(lambda x: None)
    with pytest.raises(secateur.UsageError, match="writes to its arguments"):
        secateur.plan_channels(Net(lambda net, x: [x := x * 1, halved_(x), x][-1]), IMAGES, 0.5)


@pytest.mark.parametrize("operator", ["scaled", "aten::mul", nn.Linear, None])
def test_what_is_no_operator_of_ones_own_is_refused(operator: Any) -> None:
    with pytest.raises(secateur.UsageError, match="is no operator of your own"):
        secateur.rule(operator)
