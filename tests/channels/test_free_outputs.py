"""`outputs`: those that are named keep their shape, and the others may shrink with the layers that make them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import secateur
from secateur.surgery.proof.dry_run import dry_run
from tests.support.chains import after, image, kept

COUNTING = (0, "1.boxes", "1.scores")


class Detector(nn.Module):
    """Predictions at two scales, and beside them what they are made of; in training, what `in_training` makes of it."""

    def __init__(self, in_training: Callable[[dict[str, Any]], Any] = lambda raw: raw) -> None:
        super().__init__()
        self.in_training = in_training
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.fine = nn.Conv2d(8, 12, 3, padding=1)
        self.coarse = nn.Conv2d(12, 12, 3, stride=2, padding=1)
        self.box = nn.ModuleList(nn.Conv2d(12, 4, 1) for _ in range(2))
        self.score = nn.ModuleList(nn.Conv2d(12, 5, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        fine = self.fine(self.stem(x).relu()).relu()
        feats = [fine, self.coarse(fine).relu()]
        boxes = torch.cat([head(each).flatten(2) for head, each in zip(self.box, feats, strict=True)], 2)
        scores = torch.cat([head(each).flatten(2) for head, each in zip(self.score, feats, strict=True)], 2)
        raw = {"boxes": boxes, "scores": scores, "feats": feats}
        return self.in_training(raw) if self.training else (torch.cat([boxes, scores.sigmoid()], 1), raw)


def reads_nothing_removed(model: Detector, plan: secateur.Plan) -> Detector:
    """The full-size model after whose cut layers nobody reads the channels that go."""
    dense = copy.deepcopy(model)
    for maker, readers in {
        "stem": [dense.fine],
        "fine": [dense.coarse, dense.box[0], dense.score[0]],
        "coarse": [dense.box[1], dense.score[1]],
    }.items():
        gone = sorted({*range(model.get_submodule(maker).weight.shape[0])} - {*kept(plan, f"{maker}.weight")})
        for reader in readers:
            reader.weight.data[:, gone] = 0
    return dense


def test_raw_feature_maps_pin_the_neck_only_where_they_count() -> None:
    torch.manual_seed(0)
    model = Detector().eval()
    whole = secateur.plan_channels(model, image(), 0.5)
    assert after(whole) == {"stem": 4}
    assert whole.free_outputs is None
    assert "left alone: fine: the model's output '1.feats.0' keeps its shape" in str(whole)
    plan = secateur.plan_channels(model, image(), 0.5, outputs=COUNTING)
    assert after(plan) == {"stem": 4, "fine": 6, "coarse": 6}
    assert plan.free_outputs == ("1.feats.0", "1.feats.1")
    assert "outputs that may change their shape: 1.feats.0, 1.feats.1" in str(plan)
    proof = secateur.verify(model, plan)
    assert (proof.outputs, proof.moved) == (3, True)
    expected, _ = reads_nothing_removed(model, plan)(image())
    predictions, raw = secateur.apply(model, plan)(image())
    torch.testing.assert_close(predictions, expected)
    assert [each.shape[1] for each in raw["feats"]] == [6, 6]


@dataclass
class Fields:
    logits: Tensor
    hidden: Tensor


class Named(NamedTuple):
    logits: Tensor
    hidden: Tensor


class TwoOutputs(nn.Module):
    def __init__(self, returns: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second, self.returns = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1), returns

    def forward(self, x: Tensor) -> Any:
        hidden = self.first(x).relu()
        return self.returns(self.second(hidden), hidden)


FORMS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Any, str]] = {
    "index": (lambda logits, hidden: (logits, hidden), 0, "1"),
    "dict": (lambda logits, hidden: {"logits": logits, "hidden": [hidden]}, "logits", "hidden.0"),
    "dataclass": (Fields, "logits", "hidden"),
    "namedtuple": (Named, "logits", "hidden"),
    "wildcard": (lambda logits, hidden: {"a": {"logits": logits}, "b": hidden}, "*.logits", "b"),
}


@pytest.mark.parametrize("form", FORMS)
def test_outputs_are_named_by_key_field_or_index(form: str) -> None:
    returns, counts, free = FORMS[form]
    model = TwoOutputs(returns)
    with pytest.raises(secateur.NothingToCut, match=rf"first: the model's output '{free}' keeps its shape"):
        secateur.plan_channels(model, image(), 0.5)
    plan = secateur.plan_channels(model, image(), 0.5, outputs=[counts])
    assert (after(plan), plan.free_outputs) == ({"first": 4}, (free,))
    assert secateur.verify(model, plan).moved


@pytest.mark.parametrize(
    ("in_training", "cut"),
    [
        (lambda raw: raw, ["stem", "fine", "coarse"]),
        (lambda raw: (raw["scores"].sum(), raw), ["stem", "fine", "coarse"]),
        (lambda raw: raw["feats"], ["stem", "fine", "coarse"]),
        (lambda raw: {**raw, "penalty": raw["boxes"].sum()}, ["stem", "fine", "coarse"]),
        (lambda raw: raw["feats"][1], ["stem", "fine"]),
        (lambda raw: {"maps": raw["feats"]}, ["stem"]),
    ],
    ids=["a part", "the same place", "a list", "more", "one tensor", "other names"],
)
def test_outputs_in_training_are_free_where_their_place_is_known(
    in_training: Callable[[dict[str, Any]], Any], cut: list[str]
) -> None:
    model = Detector(in_training)
    plan = secateur.plan_channels(model, image(), 0.5, outputs=COUNTING)
    assert [group.name for group in plan.groups] == cut
    secateur.apply(model, plan).train()(image())


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (["1.feat"], r"outputs names '1\.feat', but the model returns nothing called that; did you mean '1\.feats'\?"),
        (["logits"], r"nothing called that; there are 0, 1\.boxes, 1\.scores, 1\.feats\.0, 1\.feats\.1\."),
        ([7], "outputs names '7'"),
        ("boxes", r"outputs is 'boxes'; give a list of names or indices, such as outputs=\['logits'\]"),
        ([], r"outputs is \[\]; give a list"),
        (0, "outputs is 0; give a list"),
        ([None], r"outputs is \[None\]; give a list"),
    ],
)
def test_what_names_no_output_is_refused(outputs: Any, message: str) -> None:
    with pytest.raises(secateur.UsageError, match=message):
        secateur.plan_channels(Detector(), image(), 0.5, outputs=outputs)


def test_a_single_tensor_leaves_no_choice() -> None:
    with pytest.raises(secateur.UsageError, match="returns a single tensor; leave it out"):
        secateur.plan_channels(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)), image(), 0.5, outputs=[0])


def test_a_plan_of_a_file_knows_which_outputs_are_free() -> None:
    model = Detector()
    plan = secateur.plan_channels(model, image(), 0.5, outputs=COUNTING)
    loaded = secateur.Plan.from_json(plan.to_json())
    assert loaded == plan
    assert "free_outputs" not in secateur.plan_channels(model, image(), 0.5).to_json(), "written as ever"
    dry_run(model, replace(loaded, example_inputs=image()))
    assert secateur.apply(copy.deepcopy(model), loaded).eval()(image())[0].shape == (2, 9, 80)


def test_a_checkpoint_knows_it_as_well(tmp_path: Path) -> None:
    model = Detector().eval()
    plan = secateur.plan_channels(model, image(), 0.5, outputs=COUNTING)
    secateur.save(secateur.apply(model, plan), plan, tmp_path / "cut")
    loaded = secateur.load(tmp_path / "cut", Detector).eval()
    assert torch.equal(loaded(image())[0], model(image())[0])


@pytest.mark.parametrize("free", [None, ("1.feats.0",), ("0", "1.feats.0")])
def test_outputs_that_count_are_compared(free: tuple[str, ...] | None) -> None:
    model = Detector()
    plan = replace(secateur.plan_channels(model, image(), 0.5, outputs=COUNTING), free_outputs=free)
    for check in (secateur.verify, dry_run, secateur.apply):
        with pytest.raises(secateur.ProofFailed):
            check(model, plan)


def test_what_may_change_in_one_cut_may_change_in_both() -> None:
    model, pruned = Detector(), Detector()
    pruned.load_state_dict(model.state_dict())
    first = secateur.plan_channels(pruned, image(), 0.25, outputs=COUNTING)
    second = secateur.plan_channels(secateur.apply(pruned, first), image(), per_layer={"stem": 0.5})
    both = first.then(second)
    assert both.free_outputs == first.free_outputs
    assert secateur.verify(model, both).moved
    dry_run(model, both)


def test_a_target_is_met_with_what_the_free_outputs_give() -> None:
    model = Detector()
    plan = secateur.plan_channels(model, image(), target="params=30%", outputs=COUNTING)
    assert plan.parameters[1] <= 0.3 * plan.parameters[0]
    with pytest.raises(secateur.TargetUnreachable):
        secateur.plan_channels(model, image(), target="params=30%")
