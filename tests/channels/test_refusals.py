"""Calls that cannot work are refused in a sentence, and change nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.fsdp
from torch import nn

import secateur
from secateur.channels.select import NothingToCut
from tests.support.chains import chain, image, rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amount": None}, "Say how much to remove"),
        ({"amount": 1.0}, "something has to remain"),
        ({"amount": 50}, r"Did you mean 0\.5"),
        ({"amount": -0.1}, r"The amount to prune is -0\.1"),
        ({"amount": "abc"}, "The amount to prune is 'abc'"),
        ({"amount": float("nan")}, "The amount to prune is nan"),
        ({"amount": 0.0}, "too small to remove a single channel"),
        ({"amount": 0.001}, "too small to remove a single channel"),
        ({"scope": "everywhere"}, "There is no scope 'everywhere'"),
        ({"score": "magnitude"}, "There is no score 'magnitude'; choose one of l1, l2"),
        ({"score": lambda name, weight: weight}, "not all finite and ≥ 0"),
        ({"score": lambda name, weight: weight.abs().sum()}, "return a tensor of shape"),
        ({"score": "taylor"}, r"needs gradients, but first\.weight has none"),
        ({"keep": ["frist"]}, "did you mean 'first'"),
        ({"keep": "first"}, "give a list of names"),
        ({"per_layer": {"frist": 0.5}}, "per_layer names 'frist'.*did you mean 'first'"),
        ({"per_layer": {"first": 2}}, "must be below 1"),
        ({"iterations": 0}, "iterations is 0; give the number of rounds"),
        ({"iterations": True}, "iterations is True"),
        ({"multiple_of": 0}, "multiple_of is 0; give a whole number"),
        ({"multiple_of": 2.5}, r"multiple_of is 2\.5"),
        ({"floor": 1.5}, r"floor is 1\.5; give the share"),
        ({"keep": ["first"]}, "Nothing in the model can be cut: .*first: named in keep"),
    ],
)
def test_a_call_that_cannot_work_says_so_in_a_sentence(options: dict[str, Any], message: str) -> None:
    model = chain()
    with pytest.raises(secateur.UsageError, match=message) as caught:
        secateur.plan_channels(model, image(), **{"amount": 0.5, **options})
    assert "\n" not in str(caught.value)


def planned(model: Any, inputs: Any) -> secateur.Plan:
    return secateur.plan_channels(model, inputs, 0.5)


@pytest.mark.parametrize("function", [secateur.inspect, planned])
def test_what_is_no_model_is_refused(function: Callable[[Any, Any], Any]) -> None:
    assert torch.distributed.fsdp  # with which models are looked into for sharded parts
    with pytest.raises(secateur.UsageError, match=r"The model is a dict; pass the nn\.Module"):
        function({"weight": image()}, image())


@pytest.mark.parametrize("function", [secateur.inspect, planned])
def test_models_without_values_to_cut_are_refused(function: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(secateur.UsageError, match="no parameters"):
        function(nn.Sequential(nn.ReLU()), image())
    with pytest.raises(secateur.UsageError, match=r"0\.weight is not initialised yet; run the model once"):
        function(nn.Sequential(nn.LazyConv2d(8, 3), nn.Conv2d(8, 3, 3)), image())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_broken_weights_are_named(bad: float) -> None:
    model = chain()
    with torch.no_grad():
        model.first.weight[3, 0, 0, 0] = bad
    with pytest.raises(secateur.UsageError, match=r"first\.weight contains NaN or Inf"):
        secateur.plan_channels(model, image(), 0.5)


@pytest.mark.parametrize(
    ("inputs", "message"), [("image", "is a str"), (None, "is a NoneType"), ({0: 1}, "no argument names")]
)
def test_inputs_of_no_known_form_are_refused(inputs: Any, message: str) -> None:
    with pytest.raises(secateur.UsageError, match=message):
        secateur.plan_channels(chain(), inputs, 0.5)


def test_inputs_that_the_model_rejects_bring_its_own_words_and_change_nothing() -> None:
    model = chain().train()
    model.norm.eval()
    hook = model.first.register_forward_hook(lambda *_: None)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        secateur.UsageError, match=r"failed on the example inputs \(RuntimeError: .*channels.*pass inputs"
    ):
        secateur.plan_channels(model, image(5), 0.5)
    assert [module.training for module in model.modules()] == [True, True, False, True, True]
    assert list(model.first._forward_hooks) == [hook.id]
    assert not any(len(module._forward_pre_hooks) for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert type(model.first.out_channels) is int


def test_a_model_of_one_layer_has_nothing_to_cut() -> None:
    with pytest.raises(NothingToCut, match="the model's output keeps its shape") as caught:
        secateur.plan_channels(nn.Linear(8, 5), rows(8), 0.5)
    assert isinstance(caught.value, secateur.UsageError)
    assert "secateur.inspect" in str(caught.value)
