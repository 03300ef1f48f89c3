"""Code that looks at values: which of them follow from cut weights, and how such a cut is checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur
from secateur.surgery.proof import dry_run
from secateur.surgery.proof.verifying import NotProvable, ProofFailed
from tests.support.cutting import everything

Look = Callable[["Looking", Tensor, Tensor], Any]


class Looking(nn.Module):
    """Lets `look` see the input and what the first layer makes of it."""

    seen: Tensor

    def __init__(self, look: Look) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.look = look
        self.hidden = nn.Linear(6, 16)
        self.output = nn.Linear(16, 3)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        h = self.hidden(x).relu()
        seen = self.look(self, x, h)
        out = self.output(h)
        return (out, seen) if isinstance(seen, Tensor) else out


def rows(n: int = 4) -> Tensor:
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(1))


def written_through_a_view(model: Looking, x: Tensor, h: Tensor) -> bool:
    sums = torch.zeros(4)
    sums[1:2].copy_(h.sum())
    return bool(sums.max() > 0)


def read_before_it_is_written(model: Looking, x: Tensor, h: Tensor) -> bool:
    sums = torch.zeros(4)
    found = bool(sums.max() > 0)
    sums.copy_(h.sum())
    return found


LOOKS: dict[str, tuple[Look, bool]] = {
    "at nothing": (lambda model, x, h: None, False),
    "at an input": (lambda model, x, h: bool((x > 0).all()), False),
    "at which inputs are positive": (lambda model, x, h: x[x > 0].shape[0] > 3, False),
    "at a weight that stays": (lambda model, x, h: model.output.bias.sum().item(), False),
    "at what is written later": (read_before_it_is_written, False),
    "in training": (lambda model, x, h: model.training and bool(h.sum() > 0), False),
    "at activations": (lambda model, x, h: bool(h.sum() > 0), True),
    "at a count of activations": (lambda model, x, h: (h > 0).sum().item(), True),
    "at which activations are positive": (lambda model, x, h: h.sum(1)[h.sum(1) > 1].shape[0] > 3, True),
    "at the weight": (lambda model, x, h: bool(model.hidden.weight.isnan().any()), True),
    "with numpy": (lambda model, x, h: h.sum(1).detach().numpy().max(), True),
    "through a view": (written_through_a_view, True),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_plan_says_whether_the_code_looks_at_what_its_weights_make(name: str) -> None:
    look, at_weights = LOOKS[name]
    plan = secateur.plan_channels(Looking(look), rows(), 0.5)
    assert bool(plan.looks_at_weights) == at_weights
    assert ("only run once before the cut" in " ".join(str(plan).split())) == at_weights
    assert plan.output_shapes == ((4, 3),)
    assert secateur.Plan.from_json(plan.to_json()) == plan


@pytest.fixture
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "_CHEAP_PARAMETERS", 0)


def without_a_reader(plan: secateur.Plan) -> secateur.Plan:
    return dataclasses.replace(plan, tensors={name: cut for name, cut in plan.tensors.items() if "output" not in name})


@pytest.mark.usefixtures("_everything_is_large")
@pytest.mark.parametrize("name", LOOKS)
def test_a_large_cut_is_checked_whatever_the_code_looks_at(name: str) -> None:
    model = Looking(LOOKS[name][0])
    plan, before = secateur.plan_channels(model, rows(), 0.5), everything(model)
    with pytest.raises(ProofFailed, match=r"would not run .*nothing was cut"):
        secateur.apply(model, without_a_reader(plan))
    assert everything(model) == before
    assert secateur.apply(model, plan)(rows()).shape == (4, 3)


def test_weights_that_are_looked_at_play_themselves() -> None:
    """On other weights the code would take another way."""

    def look(model: Looking, x: Tensor, h: Tensor) -> None:
        if (spread := model.hidden.weight.std().item()) != whole:
            found.append(spread > 1e-3)

    found: list[bool] = []
    model = Looking(look)
    whole = model.hidden.weight.std().item()
    dry_run.dry_run(model, secateur.plan_channels(model, rows(), 0.5))
    assert found == [False, False, True], "stand-ins are all alike; only the last pass is judged"


@pytest.mark.usefixtures("_everything_is_large")
def test_values_may_decide_how_long_an_output_is() -> None:
    model = Looking(lambda model, x, h: h.sum(1)[h.sum(1) > h.sum(1).mean()])
    plan = secateur.plan_channels(model, rows(9), 0.5)
    assert plan.output_shapes[0] == (9, 3)
    secateur.apply(model, plan)
    assert model.hidden.out_features == 8


@pytest.mark.usefixtures("_everything_is_large")
def test_values_do_not_decide_how_many_axes_an_output_has() -> None:
    model = Looking(lambda model, x, h: x if h.sum() > 0 else x[0])
    plan = secateur.plan_channels(model, rows(), 0.5)
    with pytest.raises(ProofFailed, match="outputs of shapes"):
        secateur.apply(model, dataclasses.replace(plan, output_shapes=((4, 3), (4,))))


@pytest.mark.usefixtures("_everything_is_large")
def test_outputs_that_inputs_decide_are_compared_on_the_same_inputs() -> None:
    """A file does not hold the values of inputs, and others give outputs of other shapes."""
    model = Looking(lambda model, x, h: x[x > 0])
    plan = secateur.plan_channels(model, rows(), 0.5)
    loaded = secateur.Plan.from_json(plan.to_json())
    for given in (None, rows(7)):
        with pytest.raises(ProofFailed, match="would not run"):
            secateur.apply(model, without_a_reader(loaded), example_inputs=given)
        secateur.apply(Looking(model.look), loaded, example_inputs=given)


@pytest.mark.usefixtures("_everything_is_large")
def test_inputs_that_the_model_does_not_take_are_refused() -> None:
    model = Looking(LOOKS["at nothing"][0])
    plan = secateur.plan_channels(model, rows(), 0.5)
    with pytest.raises(secateur.UsageError, match=r"does not run on the example inputs .*pass example_inputs"):
        secateur.apply(model, plan, example_inputs=torch.zeros(4, 5))


@pytest.mark.usefixtures("_everything_is_large")
def test_code_that_only_runs_on_good_weights_is_run_on_them() -> None:
    """Rows of a layer whose weights are all alike are no basis."""
    model = Looking(lambda model, x, h: torch.linalg.cholesky(h @ h.T))
    assert secateur.apply(model, secateur.plan_channels(model, rows(), 0.5)).hidden.out_features == 8


def test_a_dry_run_leaves_buffers_as_they_were() -> None:
    model = Looking(lambda model, x, h: model.seen.add_(1).sum())
    plan, before = secateur.plan_channels(model, rows(), 0.5), everything(model)
    dry_run.dry_run(model, plan)
    assert everything(model) == before


def test_a_model_that_cannot_look_on_meta_is_cut_there_all_the_same() -> None:
    look = LOOKS["at an input"][0]
    plan = secateur.plan_channels(Looking(look), rows(), 0.5)
    assert secateur.apply(Looking(look).to("meta"), plan).hidden.out_features == 8
    plain = secateur.plan_channels(Looking(LOOKS["at nothing"][0]).to("meta"), rows(), 0.5)
    with pytest.raises(ProofFailed, match="would not run"):
        secateur.apply(Looking(LOOKS["at nothing"][0]).to("meta"), without_a_reader(plain))


def single_precision_only(model: Looking, x: Tensor, h: Tensor) -> None:
    if x.dtype != torch.float32:
        raise TypeError("float32 only")


def test_a_model_that_does_not_run_in_float64_is_tried_out() -> None:
    model = Looking(single_precision_only)
    plan = secateur.plan_channels(model, rows(), 0.5)
    with pytest.raises(NotProvable, match="float32 only"):
        secateur.verify(model, plan)
    with pytest.raises(ProofFailed, match="would not run"):
        secateur.apply(model, without_a_reader(plan))
    assert secateur.apply(model, plan).hidden.out_features == 8


def test_the_least_number_of_float64_is_filled_in() -> None:
    """Masks are made so: the dtype asked is float64's in a proof, and the one filled the default."""
    model = Looking(lambda model, x, h: torch.full((2,), torch.finfo(h.dtype).min).softmax(0))
    assert secateur.verify(model, secateur.plan_channels(model, rows(), 0.5)).moved
