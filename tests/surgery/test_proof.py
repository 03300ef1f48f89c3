"""A true plan is proven, and a false one refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import secateur
from secateur.plans.plan import TensorCut
from secateur.surgery.proof import dry_run
from secateur.surgery.proof.dry_run import is_cheap_to_prove, with_inputs
from secateur.surgery.proof.verifying import ProofFailed
from tests.support.cutting import Heads, everything, image, net, sequence


def tampered(plan: secateur.Plan, name: str, axis: int, change: Callable[[np.ndarray], np.ndarray]) -> secateur.Plan:
    cut = plan.tensors[name]
    changed = TensorCut(cut.shape, {**cut.kept, axis: change(cut.kept[axis].copy())})
    return dataclasses.replace(plan, tensors={**plan.tensors, name: changed})


def with_first_two_swapped(kept: np.ndarray) -> np.ndarray:
    kept[[0, 1]] = kept[[1, 0]]
    return kept


def with_one_removed_index(kept: np.ndarray) -> np.ndarray:
    removed = np.setdiff1d(np.arange(len(kept) * 2), kept)
    return np.sort(np.append(kept[1:], removed[0]))


def without(plan: secateur.Plan, name: str) -> secateur.Plan:
    return dataclasses.replace(plan, tensors={key: cut for key, cut in plan.tensors.items() if key != name})


FALSE_PLANS: dict[str, Callable[[secateur.Plan], secateur.Plan]] = {
    "a consumer's indices swapped": lambda plan: tampered(plan, "hidden.weight", 1, with_first_two_swapped),
    "a norm's indices swapped": lambda plan: tampered(plan, "norm.running_mean", 0, with_first_two_swapped),
    "a consumer keeps another index": lambda plan: tampered(plan, "hidden.weight", 1, with_one_removed_index),
    "a bias keeps another index": lambda plan: tampered(plan, "hidden.bias", 0, with_one_removed_index),
    "a consumer is not cut": lambda plan: without(plan, "output.weight"),
    "a buffer is not cut": lambda plan: without(plan, "norm.running_var"),
}


def test_a_true_plan_is_proven() -> None:
    model = net()
    proof = secateur.verify(model, secateur.plan_channels(model, image(), 0.5))
    assert 0 <= proof.error < 1e-14, "far below what is tolerated, on so small a model"
    assert proof.moved
    assert proof.outputs == 1
    assert str(proof).startswith("exact: the outputs differ from the reference by at most ")


def test_a_proof_says_where_nothing_was_at_stake() -> None:
    model = net()
    nn.init.zeros_(model.output.weight)
    proof = secateur.verify(model, secateur.plan_channels(model, image(), 0.5, keep=["hidden"]))
    assert not proof.moved
    assert "no influence" in str(proof)


def test_other_inputs_can_be_given_for_the_proof() -> None:
    model = net()
    plan = secateur.plan_channels(model, image(), 0.5)
    assert secateur.verify(model, plan, image(7)).moved


@pytest.mark.parametrize("name", FALSE_PLANS)
def test_a_false_plan_fails_the_proof(name: str) -> None:
    model = net()
    false = FALSE_PLANS[name](secateur.plan_channels(model, image(), 0.5))
    with pytest.raises(ProofFailed, match=r"The cut model (is not what the plan says|does not run)"):
        secateur.verify(model, false)


@pytest.mark.parametrize("verify", [None, True])
@pytest.mark.parametrize("name", FALSE_PLANS)
def test_a_false_plan_is_refused_asked_or_not(name: str, verify: bool | None) -> None:
    model = net()
    false = FALSE_PLANS[name](secateur.plan_channels(model, image(), 0.5))
    before = everything(model)
    with pytest.raises(ProofFailed):
        secateur.apply(model, false, verify=verify)
    assert everything(model) == before


@pytest.mark.parametrize("heads", [1, 3])
def test_a_wrong_attribute_fails_the_proof(heads: int) -> None:
    model = Heads()
    plan = secateur.plan_channels(model, sequence(), 0.5)
    false = dataclasses.replace(plan, attributes={key: (old, heads) for key, (old, _) in plan.attributes.items()})
    before = everything(model)
    with pytest.raises(ProofFailed, match="does not run"):
        secateur.apply(model, false)
    assert everything(model) == before


@pytest.fixture
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "_CHEAP_PARAMETERS", 0)
    monkeypatch.setattr(dry_run, "_CHEAP_MACS", 0)


@pytest.mark.usefixtures("_everything_is_large")
@pytest.mark.parametrize("name", ["a consumer is not cut", "a buffer is not cut"])
def test_a_large_plan_with_which_the_code_does_not_run_is_refused(name: str) -> None:
    model = net()
    false = FALSE_PLANS[name](secateur.plan_channels(model, image(), 0.5))
    before = everything(model)
    with pytest.raises(ProofFailed, match=r"would not run .*nothing was cut"):
        secateur.apply(model, false)
    assert everything(model) == before


@pytest.mark.usefixtures("_everything_is_large")
def test_a_large_plan_that_changes_the_outputs_is_refused() -> None:
    model = net()
    plan = secateur.plan_channels(model, image(), 0.5)
    fewer = np.arange(3)
    outputs = {
        "output.weight": TensorCut((5, 12), {0: fewer, 1: plan.tensors["output.weight"].kept[1]}),
        "output.bias": TensorCut((5,), {0: fewer}),
    }
    before = everything(model)
    with pytest.raises(ProofFailed, match=r"outputs of shapes \(\(2, 3\),\) instead of \(\(2, 5\),\)"):
        secateur.apply(model, dataclasses.replace(plan, tensors={**plan.tensors, **outputs}))
    assert everything(model) == before


@pytest.mark.usefixtures("_everything_is_large")
def test_a_large_true_plan_is_applied_without_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    plan = secateur.plan_channels(model, image(), 0.5)
    monkeypatch.setattr("secateur.surgery.applying.prove", lambda *_: pytest.fail("it was proven all the same"))
    assert secateur.apply(model, plan).conv.out_channels == 8


def test_a_plan_is_cut_once_on_a_copy_and_once_for_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof runs the cut model, so that a dry run besides would only take time."""
    model = net()
    plan = secateur.plan_channels(model, image(), 0.5)
    monkeypatch.setattr("secateur.surgery.applying.dry_run", lambda *_: pytest.fail("it was tried out as well"))
    assert secateur.apply(model, plan).conv.out_channels == 8


def test_a_plan_of_which_a_proof_says_nothing_is_tried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    nn.init.zeros_(model.output.weight)
    plan = secateur.plan_channels(model, image(), 0.5, keep=["hidden"])
    tried: list[secateur.Plan] = []
    monkeypatch.setattr("secateur.surgery.applying.dry_run", lambda _, plan, passes: tried.append(plan))
    secateur.apply(model, plan)
    assert tried == [plan]


def test_a_proof_can_be_left_out() -> None:
    model = net()
    false = tampered(secateur.plan_channels(model, image(), 0.5), "hidden.weight", 1, with_first_two_swapped)
    assert secateur.apply(model, false, verify=False).conv.out_channels == 8


def test_a_proof_that_passes_runs_the_model_in_float64_twice() -> None:
    model, dtypes = net(), []
    plan = secateur.plan_channels(model, image(), 0.5)
    model.register_forward_pre_hook(lambda module, _: dtypes.append(next(module.parameters()).dtype))
    assert secateur.verify(model, plan).moved
    assert dtypes == [torch.float32, torch.float64, torch.float64]


def test_a_proof_is_made_by_itself_where_operators_are_few() -> None:
    model = net()
    plan = secateur.plan_channels(model, image(), 0.5)
    assert plan.operators is not None
    loaded = with_inputs(model, secateur.Plan.from_json(plan.to_json()))
    assert loaded.operators == plan.operators
    assert is_cheap_to_prove(model, plan)
    assert not is_cheap_to_prove(model, dataclasses.replace(plan, operators=501))


@pytest.mark.usefixtures("_everything_is_large")
def test_weights_are_rehearsed_by_stand_ins_that_share_solid_memory() -> None:
    model = net()
    plan = secateur.plan_channels(model, image(), 0.5)
    seen: list[torch.Tensor] = []
    for layer in (model.conv, model.hidden, model.output):
        layer.register_forward_pre_hook(lambda module, _: seen.append(module.weight))
    dry_run.dry_run(model, plan)
    assert [tuple(weight.shape) for weight in seen] == [(8, 3, 3, 3), (6, 8), (5, 6)]
    assert all(weight.is_contiguous() for weight in seen)
    assert len({weight.data_ptr() for weight in seen}) == 1
