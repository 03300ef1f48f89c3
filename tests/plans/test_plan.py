"""Plans as files, and two plans as one."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

import secateur
from secateur.channels.sensitivity_curves import Sensitivity
from secateur.plans.masks import LayerMask
from tests.architectures import ARCHITECTURES
from tests.architectures.registry import call
from tests.support.cutting import Heads, Net, assert_same_values, image, net, sequence, values

EARLIER = Path(__file__).parent.parent / "earlier_files"

# Files


def test_a_plan_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    plan = secateur.plan_channels(Heads(), sequence(), 0.5)
    plan.save(tmp_path / "plan.json")
    loaded = secateur.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert str(loaded) == str(plan)
    assert [type(i) for i in loaded.attributes] == [tuple] * len(plan.attributes)


def test_a_loaded_plan_cuts_another_instance_alike(tmp_path: Path) -> None:
    model = net()
    plan = secateur.plan_channels(model, image(), 0.5)
    plan.save(tmp_path / "plan.json")
    other = Net().eval()
    other.load_state_dict(model.state_dict())
    secateur.apply(other, secateur.Plan.load(tmp_path / "plan.json"))
    assert torch.equal(other(image()), secateur.apply(model, plan)(image()))


def test_a_loaded_plan_can_be_proven_with_inputs(tmp_path: Path) -> None:
    model = net()
    secateur.plan_channels(model, image(), 0.5).save(tmp_path / "plan.json")
    loaded = secateur.Plan.load(tmp_path / "plan.json")
    assert secateur.verify(model, loaded, image()).moved
    with pytest.raises(secateur.UsageError, match="example inputs are not saved"):
        secateur.verify(model, loaded)


def stored_plan() -> dict[str, Any]:
    return json.loads(json.dumps(secateur.plan_channels(Heads(), sequence(), 0.5).to_json()))


def set_kept(kept: Any) -> Callable[[dict[str, Any]], None]:
    def change(stored: dict[str, Any]) -> None:
        stored["tensors"]["query.weight"]["kept"]["0"] = kept

    return change


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another format": lambda stored: stored.update(format="something"),
    "another version": lambda stored: stored.update(version=2),
    "no version": lambda stored: stored.pop("version"),
    "no tensors": lambda stored: stored.pop("tensors"),
    "tensors as a list": lambda stored: stored.update(tensors=[]),
    "no shape": lambda stored: stored["tensors"]["query.weight"].pop("shape"),
    "index out of range": set_kept([0, 1, 24]),
    "index twice": set_kept([0, 1, 1]),
    "indices out of order": set_kept([1, 0]),
    "negative index": set_kept([-1, 0, 1]),
    "fractions": set_kept([0.0, 1.5]),
    "truth values": set_kept([False, True]),
    "text": set_kept("01"),
    "nothing kept": set_kept([]),
    "more kept than there are": set_kept([*range(25)]),
    "indices in a list of lists": set_kept([[0, 1]]),
    "an axis too many": lambda stored: stored["tensors"]["query.weight"]["kept"].update({"2": [0]}),
    "a negative axis": lambda stored: stored["tensors"]["query.weight"]["kept"].update({"-1": [0]}),
    "attributes without a place": lambda stored: stored["attributes"][0].pop("way"),
    "attributes as text": lambda stored: stored["attributes"][0].update(new="two"),
    "groups with other fields": lambda stored: stored["groups"][0].update(colour="red"),
    "a group without a name": lambda stored: stored["groups"][0].update(name=None),
    "a group of half a channel": lambda stored: stored["groups"][0].update(before=24.5),
    "a group with layers in one text": lambda stored: stored["groups"][0].update(layers="query"),
    "a group that saves nothing known": lambda stored: stored["groups"][0].update(macs=None),
    "left alone for no reason": lambda stored: stored.update(left_alone=[{"name": "x", "reason": 3}]),
    "parameters as one number": lambda stored: stored.update(parameters=5),
    "macs as text": lambda stored: stored.update(macs=["1", "2"]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_plan_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    stored = stored_plan()
    DAMAGE[name](stored)
    (tmp_path / "plan.json").write_text(json.dumps(stored))
    with pytest.raises(secateur.SecateurError) as caught:
        secateur.Plan.load(tmp_path / "plan.json")
    assert "\n" not in str(caught.value)
    assert any(words in str(caught.value) for words in ("The plan is damaged", "not a plan", "The plan has version"))


@pytest.mark.parametrize("new", [2.7, True, "2"])
def test_attributes_that_are_no_whole_numbers_are_refused(new: Any) -> None:
    stored = stored_plan()
    stored["attributes"][0]["new"] = new
    with pytest.raises(secateur.SecateurError, match="damaged"):
        secateur.Plan.from_json(stored)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", "\x00\xff", "[" * 100_000])
def test_a_file_that_is_no_plan_is_refused_in_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(secateur.SecateurError, match=r"not a (readable )?plan") as caught:
        secateur.Plan.load(tmp_path / "plan.json")
    assert "\n" not in str(caught.value)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    text = json.dumps(stored_plan())
    for length in range(1, len(text), len(text) // 20):
        (tmp_path / "plan.json").write_text(text[:length])
        with pytest.raises(secateur.SecateurError, match="not a readable plan"):
            secateur.Plan.load(tmp_path / "plan.json")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(secateur.SecateurError, match="There is no plan"):
        secateur.Plan.load(tmp_path / "plan.json")


# Two cuts as one


@pytest.mark.parametrize("name", ["resnet_basic", "gqa_expand", "shared_config", "group_norm", "mobilenet_v2"])
def test_two_cuts_compose_into_one(name: str) -> None:
    architecture = ARCHITECTURES[name]
    dense, inputs = architecture.build(), architecture.inputs()
    model = copy.deepcopy(dense)
    first = secateur.plan_channels(model, inputs, 0.3)
    secateur.apply(model, first)
    second = secateur.plan_channels(model, inputs, 0.4)
    secateur.apply(model, second)
    both = first.then(second)
    assert secateur.verify(dense, both).moved
    secateur.apply(dense, both)
    assert_same_values(dense, values(model))
    assert torch.equal(call(dense, inputs), call(model, inputs))
    assert both.parameters == (first.parameters[0], second.parameters[1])
    assert both.macs == (first.macs[0], second.macs[1])


def test_composed_groups_count_from_the_dense_model() -> None:
    model = net()
    first = secateur.plan_channels(model, image(), 0.25)
    secateur.apply(model, first)
    second = secateur.plan_channels(model, image(), per_layer={"conv": 0.5})
    groups = {group.name: (group.before, group.after) for group in first.then(second).groups}
    assert groups == {"conv": (16, 6), "hidden": (12, 9)}


def test_a_composed_plan_survives_its_file(tmp_path: Path) -> None:
    model = net()
    first = secateur.plan_channels(model, image(), 0.25)
    secateur.apply(model, first)
    both = first.then(secateur.plan_channels(model, image(), 0.5))
    both.save(tmp_path / "plan.json")
    assert secateur.Plan.load(tmp_path / "plan.json") == both


def test_nothing_in_a_file_reaches_the_terminal_as_a_command() -> None:
    """Neither names nor texts; a plan that says how a target was met tells it in a sentence of its own."""
    odd = "\x1b[2J\r\ud800"
    stored = json.loads((EARLIER / "plan-met.json").read_text())
    stored["groups"][0] |= {"name": odd, "layers": [odd], "kind": odd}
    stored["left_alone"] = [{"name": odd, "reason": odd}]
    stored |= {"scope": odd, "score": odd}
    stored["outcome"] |= {"target": odd}
    plan = secateur.Plan.from_json(stored)
    assert plan.groups[0].name == odd, "what is read is what was stored"
    assert all(line.isprintable() for line in str(plan).split("\n"))
    assert str(plan.outcome).isprintable()
    masks = secateur.Masks({odd: LayerMask.pack(torch.ones(2) > 0)}, odd, odd, odd, plan.left_alone)
    assert all(line.isprintable() for line in str(masks).split("\n"))
    curves = json.loads((EARLIER / "sensitivity.json").read_text())
    curves["groups"][0]["name"] = curves["metric"] = odd
    assert all(line.isprintable() for line in str(Sensitivity.from_json(curves)).split("\n"))
