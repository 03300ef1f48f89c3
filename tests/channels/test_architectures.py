"""Every architecture is planned, cut and proven against the independent reference, at three amounts and per group."""

from __future__ import annotations

import copy
import itertools
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

import secateur
from secateur.base.tensor_trees import tensors_in
from secateur.channels.select import NothingToCut
from tests.architectures import ARCHITECTURES
from tests.architectures.registry import call
from tests.channels.test_threads import contents

CUTTABLE = [name for name, architecture in ARCHITECTURES.items() if architecture.cuttable]
UNCUTTABLE = [name for name, architecture in ARCHITECTURES.items() if not architecture.cuttable]


def has_images(inputs: Any) -> bool:
    return any(tensor.dim() == 4 for tensor in tensors_in(inputs))


@lru_cache(maxsize=1)
def untouched(name: str) -> tuple[nn.Module, Any]:
    """A model for tests that plan and prove, and so leave it as it is. By their scope, those of one follow another."""
    return ARCHITECTURES[name].build().eval(), ARCHITECTURES[name].inputs()


@pytest.mark.usefixtures("dissect_once")
@pytest.mark.parametrize("amount", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("name", CUTTABLE, scope="module")
def test_all_groups_together(name: str, amount: float) -> None:
    model, inputs = untouched(name)
    plan = secateur.plan_channels(model, inputs, amount)
    assert secateur.verify(model, plan).moved, "the check would have passed whatever had been removed"
    assert plan.parameters[1] < plan.parameters[0]
    assert plan.macs[1] <= plan.macs[0]


@pytest.mark.usefixtures("dissect_once")
@pytest.mark.parametrize("name", CUTTABLE, scope="module")
def test_what_ran_before_and_the_memory_format_change_no_plan(name: str) -> None:
    model, inputs = untouched(name)
    twin = ARCHITECTURES[name].build().eval()
    if has_images(inputs):
        twin = twin.to(memory_format=torch.channels_last)
    twins_inputs = tree_map(lambda x: x.to(memory_format=torch.channels_last) if has_images(x) else x, inputs)
    if name in ("lenet_view_literal", "fft_filter"):  # their own code demands that channels come first
        with pytest.raises(RuntimeError, match="stride"):
            call(twin, twins_inputs)
        twin, twins_inputs = twin.to(memory_format=torch.contiguous_format), inputs
    plan = secateur.plan_channels(model, inputs, 0.5)
    with torch.no_grad():
        call(twin, twins_inputs)
    twins_plan = secateur.plan_channels(twin, twins_inputs, 0.5)
    assert contents(twins_plan) == contents(plan)
    if has_images(inputs):
        secateur.verify(twin, twins_plan)


@pytest.mark.usefixtures("dissect_once")
@pytest.mark.parametrize("name", CUTTABLE, scope="module")
def test_some_groups_alone(name: str) -> None:
    prove_groups_alone(name, most=3)


@pytest.mark.zoo
@pytest.mark.usefixtures("dissect_once")
@pytest.mark.parametrize("name", CUTTABLE, scope="module")
def test_each_group_alone(name: str) -> None:
    prove_groups_alone(name, most=1000)


def prove_groups_alone(name: str, most: int) -> None:
    model, inputs = untouched(name)
    units: dict[str, int] = {}
    for group in secateur.inspect(model, inputs).groups:
        units[group.layers[0]] = max(group.units, units.get(group.layers[0], 0))
    for layer, amount in zip(sorted(units)[:most], itertools.cycle([0.5, 0.25, 0.75]), strict=False):
        try:
            plan = secateur.plan_channels(model, inputs, per_layer={layer: amount})
        except NothingToCut:
            assert amount * units[layer] <= 0.5, "only so small an amount rounds to nothing"
            continue
        assert secateur.verify(model, plan).outputs > 0
        assert plan.parameters[1] < plan.parameters[0], layer


@pytest.mark.usefixtures("dissect_once")
@pytest.mark.parametrize("name", CUTTABLE, scope="module")
def test_the_cut_model_trains_and_cuts_again(name: str) -> None:
    whole, inputs = untouched(name)
    plan = secateur.plan_channels(whole, inputs, 0.5)
    model = copy.deepcopy(whole)
    before = shapes_of(call(model, inputs))
    secateur.apply(model, plan, verify=False)
    assert shapes_of(call(model, inputs)) == before, "the outputs keep their shapes"
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert counted == plan.parameters[1], "the plan predicted the parameters"
    loss = sum(tensor.double().square().mean() for tensor in tensors_in(call(model, inputs)) if tensor.requires_grad)
    if isinstance(loss, torch.Tensor):
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is None or parameter.grad.shape == parameter.shape
    with torch.no_grad():
        call(model, inputs)  # hooks of the old weight norm leave the graph of the last pass on the module
    assert secateur.verify(model, secateur.plan_channels(model, inputs, 0.5)).moved


@pytest.mark.parametrize("name", UNCUTTABLE)
def test_what_cannot_be_cut_is_an_error_with_the_reason(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model, inputs = architecture.build(), architecture.inputs()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(secateur.UsageError, match=r"cannot be cut|can be cut|nothing to cut"):
        secateur.plan_channels(model, inputs, 0.5)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def shapes_of(outputs: object) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tensors_in(outputs)]
