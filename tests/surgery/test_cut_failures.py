"""A cut is made whole or not at all, and a plan for another model is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor, nn

import secateur
from secateur.surgery import cutting
from tests.support.cutting import Heads, Net, everything, image, net, sequence, states


def failing_at(count: int, function: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    calls = 0

    def failing(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            raise error
        return function(*args)

    return failing


@pytest.mark.parametrize("error", [MemoryError("no more"), KeyboardInterrupt()], ids=["memory", "ctrl-c"])
def test_a_cut_that_fails_at_any_tensor_leaves_everything_as_it_was(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Heads()
    optimizer = torch.optim.AdamW(model.parameters())
    model(sequence()).sum().backward()
    optimizer.step()
    plan = secateur.plan_channels(model, sequence(), 0.5)
    before, before_states = everything(model), states(optimizer)
    axes = sum(len(cut.kept) for cut in plan.tensors.values())
    assert axes == 7, "three projections with their biases, and the inputs of the last"
    for count in range(1, axes + 1):
        with monkeypatch.context() as patch:
            patch.setattr(cutting, "_cut_axis", failing_at(count, cutting._cut_axis, error))
            with pytest.raises(type(error)):
                secateur.apply(model, plan, optimizer=optimizer, verify=False)
        assert everything(model) == before
        assert states(optimizer) == before_states
    secateur.apply(model, plan, optimizer=optimizer)
    assert model.heads == 2


@pytest.mark.parametrize("step", ["write_attributes", "_update_descriptions", "cut_state"])
def test_a_cut_that_fails_after_the_tensors_leaves_everything_as_it_was(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Heads()
    model(sequence()).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer.step()
    plan = secateur.plan_channels(model, sequence(), 0.5)
    before, before_states = everything(model), states(optimizer)
    monkeypatch.setattr(cutting, step, failing_at(1, getattr(cutting, step), KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        secateur.apply(model, plan, optimizer=optimizer, verify=False)
    assert everything(model) == before
    assert states(optimizer) == before_states


@pytest.mark.parametrize("count", [1, 4])
def test_ctrl_c_right_after_data_are_replaced_is_undone(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    plan = secateur.plan_channels(model, image(), 0.5)
    before = everything(model)
    replace, calls = cutting._replace_data, 0

    def interrupted(tensor: Tensor, data: Tensor) -> None:
        nonlocal calls
        calls += 1
        replace(tensor, data)
        if calls == count:
            raise KeyboardInterrupt

    monkeypatch.setattr(cutting, "_replace_data", interrupted)
    with pytest.raises(KeyboardInterrupt):
        secateur.apply(model, plan, verify=False)
    assert everything(model) == before


@pytest.mark.parametrize("verify", [None, True, False])
def test_a_plan_for_other_widths_is_refused(verify: bool | None) -> None:
    plan = secateur.plan_channels(net(), image(), 0.5)
    other = Net(20, 12)
    before = everything(other)
    with pytest.raises(
        secateur.UsageError, match=r"cuts conv\.weight of shape \(16, 3, 3, 3\).*has shape \(20, 3, 3, 3\)"
    ):
        secateur.apply(other, plan, verify=verify)
    assert everything(other) == before


@pytest.mark.parametrize("verify", [None, True, False])
def test_a_plan_for_another_architecture_is_refused(verify: bool | None) -> None:
    plan = secateur.plan_channels(net(), image(), 0.5)
    other = nn.Sequential(nn.Linear(3, 4))
    with pytest.raises(secateur.UsageError, match=r"cuts conv\.weight, which the model does not have"):
        secateur.apply(other, plan, verify=verify)


def test_a_plan_is_applied_once(cut_net: Net) -> None:
    plan = secateur.plan_channels(net(), image(), 0.5)
    before = everything(cut_net)
    with pytest.raises(secateur.UsageError, match="apply a plan once"):
        secateur.apply(cut_net, plan)
    assert everything(cut_net) == before


@pytest.mark.parametrize("verify", [None, True, False])
def test_a_model_with_other_attributes_is_refused(verify: bool | None) -> None:
    plan = secateur.plan_channels(Heads(24, 4), sequence(), 0.5)
    other = Heads(24, 8)
    before = everything(other)
    with pytest.raises(secateur.UsageError, match="expects heads to be 4, but it is 8"):
        secateur.apply(other, plan, verify=verify)
    assert everything(other) == before
