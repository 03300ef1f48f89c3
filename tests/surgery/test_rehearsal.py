"""A plan that was loaded is rehearsed before it is applied, as one that was made just now."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur
from tests.support.cutting import Heads, everything, image, net, sequence


class Tokens(nn.Module):
    """Takes indices into an embedding, and a mask by name."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.norm = nn.LayerNorm(16)
        self.inner = nn.Linear(16, 24)
        self.outer = nn.Linear(24, 16)
        self.output = nn.Linear(16, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(ids) * mask[..., None]
        return self.output(self.norm(x + self.outer(torch.relu(self.inner(x)))))


def tokens() -> dict[str, Tensor]:
    return {"ids": torch.tensor([[10, 3, 0, 7]]), "mask": torch.ones(1, 4, dtype=torch.bool)}


MODELS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "net": (net, image()),
    "heads": (lambda: Heads().eval(), sequence()),
    "tokens": (lambda: Tokens().eval(), tokens()),
}


def stored(model: nn.Module, inputs: Any) -> dict[str, Any]:
    return json.loads(json.dumps(secateur.plan_channels(model, inputs, 0.5).to_json()))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_plan_is_applied_like_the_one_that_was_saved(name: str) -> None:
    make, inputs = MODELS[name]
    model = make()
    plan = secateur.plan_channels(model, inputs, 0.5)
    cut = secateur.apply(copy.deepcopy(model), secateur.Plan.from_json(plan.to_json()))
    expected = secateur.apply(model, plan)
    call = inputs if isinstance(inputs, dict) else {"x": inputs}
    assert torch.equal(cut(**call), expected(**call))


def lose_a_row(plan: dict[str, Any]) -> None:
    plan["tensors"]["hidden.weight"]["kept"]["0"].pop()


def lose_a_tensor(plan: dict[str, Any]) -> None:
    del plan["tensors"]["output.weight"]


def mix_channels_up(plan: dict[str, Any]) -> None:
    kept = plan["tensors"]["hidden.weight"]["kept"]
    kept["1"] = [index for index in range(16) if index not in kept["1"]]


REFUSED = [
    (lose_a_row, True),
    (lose_a_row, False),
    (lose_a_tensor, True),
    (lose_a_tensor, False),
    (mix_channels_up, True),
]
"""Channels that are mixed up run well, so that only a proof tells."""


@pytest.mark.parametrize(("change", "cheap"), REFUSED)
def test_a_changed_plan_is_refused(
    change: Callable[[dict[str, Any]], None], cheap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secateur.surgery.applying.is_cheap_to_prove", lambda model, plan: cheap)
    model = net()
    forged = stored(model, image())
    change(forged)
    before = everything(model)
    with pytest.raises(secateur.SecateurError, match="cut model"):
        secateur.apply(model, secateur.Plan.from_json(forged))
    assert everything(model) == before


def test_a_plan_without_the_form_of_inputs_is_refused() -> None:
    """As earlier versions wrote it; a forger may have taken the form out."""
    model = net()
    forged = stored(model, image())
    del forged["example_form"]
    plan, before = secateur.Plan.from_json(forged), everything(model)
    with pytest.raises(secateur.UsageError, match=r"does not say what the model is called with.*pass example_inputs"):
        secateur.apply(model, plan)
    assert everything(model) == before
    secateur.apply(model, plan, verify=False)


def test_a_plan_without_the_form_of_inputs_is_rehearsed_on_given_ones() -> None:
    model = net()
    forged = stored(model, image())
    del forged["example_form"]
    secateur.apply(copy.deepcopy(model), secateur.Plan.from_json(forged), example_inputs=image())
    lose_a_tensor(forged)
    plan = secateur.Plan.from_json(forged)
    with pytest.raises(secateur.SecateurError, match="cut model"):
        secateur.apply(model, plan, example_inputs=image())


def test_a_form_on_which_the_model_does_not_run_is_refused() -> None:
    model = net()
    forged = stored(model, image())
    forged["example_form"] = {"tensor": {"shape": [3], "dtype": "float32", "low": 0, "high": 0}}
    plan = secateur.Plan.from_json(forged)
    with pytest.raises(secateur.UsageError, match=r"does not run on inputs of the form.*pass example_inputs"):
        secateur.apply(model, plan)
    secateur.apply(model, plan, example_inputs=image())


@pytest.mark.parametrize("change", [lose_a_row, lose_a_tensor])
def test_a_loaded_plan_is_tried_out_on_the_meta_device(change: Callable[[dict[str, Any]], None]) -> None:
    forged = stored(net(), image())
    secateur.apply(net().to("meta"), secateur.Plan.from_json(forged))
    change(forged)
    for given in (None, image()):
        with pytest.raises(secateur.SecateurError, match="cut model would not run"):
            secateur.apply(net().to("meta"), secateur.Plan.from_json(forged), example_inputs=given)


def test_masks_take_no_example_inputs() -> None:
    model = net()
    masks = secateur.plan_weights(model, 0.5)
    with pytest.raises(secateur.UsageError, match="example_inputs belong to plans"):
        secateur.apply(model, masks, example_inputs=image())


def mutated(plan: dict[str, Any], choose: random.Random) -> dict[str, Any]:
    """One index, list of indices, tensor or size of the plan is another, or gone."""
    plan = copy.deepcopy(plan)
    name = choose.choice(list(plan["tensors"]))
    kept = plan["tensors"][name]["kept"]
    axis = choose.choice(list(kept))
    match choose.randrange(6):
        case 0:
            del plan["tensors"][name]
        case 1:
            del kept[axis]
        case 2:
            kept[axis].pop(choose.randrange(len(kept[axis])))
        case 3:
            length = plan["tensors"][name]["shape"][int(axis)]
            kept[axis] = sorted(choose.sample(range(length), choose.randint(1, length)))
        case 4:
            kept[str(1 - int(axis))] = kept[axis]
        case _ if plan["attributes"]:
            choose.choice(plan["attributes"])["new"] += choose.choice([-1, 1])
        case _:
            plan["output_shapes"] = []
    return plan


@pytest.mark.parametrize("name", MODELS)
def test_no_mutated_plan_is_accepted_and_breaks_the_model(name: str) -> None:
    make, inputs = MODELS[name]
    model, choose = make(), random.Random(0)
    whole = stored(model, inputs)
    call = inputs if isinstance(inputs, dict) else {"x": inputs}
    shape, accepted = model(**call).shape, 0
    for _ in range(25):
        changed, target = mutated(whole, choose), copy.deepcopy(model)
        try:
            secateur.apply(target, secateur.Plan.from_json(changed))
        except secateur.SecateurError:
            continue
        assert target(**call).shape == shape
        accepted += 1
    assert accepted < 25
