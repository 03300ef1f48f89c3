"""`repair` as its users call it: what it changes, what it leaves, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import secateur
from secateur.plans import LayerMask, Masks
from secateur.refit import fitting, repairing
from tests.support.cutting import Net, everything, net
from tests.support.cutting import image as few_images


def images(count: int = 48) -> Tensor:
    noise = torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    return noise + noise.mean((1, 2, 3), keepdim=True) * 20


def plan(model: nn.Module) -> secateur.Plan:
    return secateur.plan_channels(model, few_images(), 0.5)


def repair(model: nn.Module, what: Any, batches: Any, **options: Any) -> secateur.Repaired:
    return secateur.repair(model, what, batches, progress=False, **options)


def test_a_plan_in_one_step_and_after_apply_give_the_same() -> None:
    dense, at_once = net(), net()
    dense.load_state_dict(at_once.state_dict())
    found, cut = plan(dense), secateur.apply(copy.deepcopy(dense), plan(dense))
    one = repair(at_once, found, images())
    two = repair(cut, found, images(), dense=dense)
    assert one.before == two.before > one.after == two.after
    assert all(torch.equal(a, b) for a, b in zip(at_once.parameters(), cut.parameters(), strict=True))
    assert at_once.hidden.weight.shape == (6, 8)


def test_masks_in_one_step_and_after_apply_give_the_same() -> None:
    dense = net()
    masks = secateur.plan_weights(dense, 0.5)
    at_once, zeroed = copy.deepcopy(dense), secateur.apply(copy.deepcopy(dense), masks)
    repair(at_once, masks, images())
    repair(zeroed, masks, images(), dense=dense)
    assert all(torch.equal(a, b) for a, b in zip(at_once.parameters(), zeroed.parameters(), strict=True))


def test_what_reads_nothing_that_changed_stays_to_the_bit() -> None:
    model = net()
    before = copy.deepcopy(model)
    found = secateur.plan_channels(model, few_images(), keep_indices={"hidden": range(6)})
    report = repair(model, found, images())
    assert {layer.name for layer in report.layers} == {"output.weight"}
    for name in ("conv.weight", "conv.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"):
        assert torch.equal(model.state_dict()[name], before.state_dict()[name])
    assert torch.equal(model.hidden.weight, before.hidden.weight[:6])


@pytest.mark.parametrize("kind", ["plan", "masks"])
def test_what_would_not_bring_outputs_nearer_only_cuts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    found: Any = plan(model) if kind == "plan" else secateur.plan_weights(model, 0.5)
    expected = secateur.apply(copy.deepcopy(model), found)
    real = repairing._refitted
    monkeypatch.setattr(repairing, "_refitted", lambda *args: (*real(*args)[:2], 9.0))
    repair(model, found, images())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))
    repair(expected, found, images(), dense=net())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))


def test_frozen_weights_are_repaired_and_stay_frozen() -> None:
    """Freezing tells an optimizer what to leave alone. Weights that read less than before are wrong, frozen or not."""
    model = net().requires_grad_(False)
    model.output.requires_grad_(True)
    report = repair(model, plan(model), images())
    assert report.after < report.before
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["output.weight", "output.bias"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_half_precision_stay_so(dtype: torch.dtype) -> None:
    model = net().to(dtype)
    found = secateur.plan_channels(model, few_images().to(dtype), 0.5)
    report = repair(model, found, images().to(dtype))
    assert report.after < report.before
    assert {p.dtype for p in model.parameters()} == {dtype}


def test_layouts_stay() -> None:
    model, plain = net().to(memory_format=torch.channels_last), net()
    plain.load_state_dict(model.state_dict())
    masks = secateur.plan_weights(model, 0.5)
    for each in (model, plain):
        repair(each, masks, images())
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(model.conv.weight, plain.conv.weight)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.hidden, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(self.table(ids))))


def test_a_tied_table_stays_as_the_embedding_needs_it() -> None:
    model = Tied()
    masks = Masks({"hidden.weight": LayerMask.pack(torch.rand(8, 8) < 0.5)})
    before = model.table.weight.detach().clone()
    report = repair(model, masks, torch.randint(20, (64, 5)))
    assert {layer.name: layer.kept for layer in report.layers} == {
        "hidden.weight": "",
        "table.weight": "embedding reads it, too",
    }
    assert model.head.weight is model.table.weight
    assert torch.equal(model.table.weight, before)


class Twice(nn.Module):
    """Uses its second weight first where nothing has changed, and then behind the cut."""

    def __init__(self, read_again: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.read_again = nn.Linear(6, 6), nn.Linear(6, 6), read_again

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([self.second(x), self.second(torch.tanh(self.first(x)))], 1)
        return torch.cat([y, x * self.second.weight.sum(1)], 1) if self.read_again else y


def test_a_shared_weight_is_fitted_to_all_of_its_calls() -> None:
    model, x = Twice().double(), torch.randn(64, 6).double()
    with torch.no_grad():
        wanted = [model.second(x), model.second(torch.tanh(model.first(x)))]
    masks = Masks({"first.weight": LayerMask.pack(torch.rand(6, 6) < 0.3)})
    start = torch.cat([model.second.weight, model.second.bias[:, None]], 1).detach()
    report = repair(model, masks, x)
    read = torch.cat([x, torch.tanh(model.first(x))]).detach()
    read = F.pad(read, (0, 1), value=1.0)
    found = torch.cat([model.second.weight, model.second.bias[:, None]], 1).detach()

    def solution(ridge: float) -> Tensor:
        hold = ridge * read.square().sum(0).mean()
        system = torch.cat([read, hold.sqrt() * torch.eye(7).double()])
        return torch.linalg.lstsq(system, torch.cat([torch.cat(wanted), hold.sqrt() * start.T])).solution.T

    if {layer.name: layer.kept for layer in report.layers}["second.weight"]:
        assert torch.equal(found, start)
    else:
        assert min(float((found - solution(r)).norm() / start.norm()) for r in (1e-9, 1e-4, 1e-2)) < 1e-6


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_of_too_many_inputs_is_scaled_and_shifted(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MOST_INPUTS", 20)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 4, bias=bias)).double()
    x = (torch.randn(400, 6) + 2 * torch.randn(400, 1)).double()
    masks = secateur.plan_weights(model, 0.7, scope="layer")
    dense, cut = copy.deepcopy(model), secateur.apply(copy.deepcopy(model), masks)
    report = repair(model, masks, x)
    layer = report.layers[-1]
    assert (layer.name, layer.kept) == ("2.weight", "too many inputs to solve for: its outputs are scaled and shifted")
    assert layer.after < layer.before
    ratios = (model[2].weight / cut[2].weight).detach()
    factors = ratios.nanmean(1)
    torch.testing.assert_close(model[2].weight, cut[2].weight * factors[:, None])
    with torch.no_grad():
        wanted, given = dense(x), model[1](model[0](x)) @ cut[2].weight.T
    for row in range(4):
        read = torch.stack([given[:, row], torch.ones(400).double()], 1) if bias else given[:, [row]]
        best = torch.linalg.lstsq(read, wanted[:, row]).solution
        found = torch.stack([factors[row], model[2].bias[row]]) if bias else factors[[row]]
        torch.testing.assert_close(found.detach(), best, rtol=2e-2, atol=2e-2)


def test_a_weight_that_something_reads_later_stays() -> None:
    model = Twice(read_again=True)
    before = model.second.weight.detach().clone()
    report = repair(model, Masks({"first.weight": LayerMask.pack(torch.rand(6, 6) < 0.5)}), torch.randn(64, 6))
    assert {layer.name: layer.kept for layer in report.layers}["second.weight"] == "sum reads it, too"
    assert torch.equal(model.second.weight, before)


def test_weights_that_share_a_bias_stay() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
            self.third.bias = self.second.bias

        def forward(self, x: Tensor) -> Tensor:
            return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))

    model = Shared()
    report = repair(model, Masks({"first.weight": LayerMask.pack(torch.rand(6, 6) < 0.5)}), torch.randn(64, 6))
    reasons = {layer.name: layer.kept for layer in report.layers}
    assert reasons["second.weight"] == reasons["third.weight"] == "second.bias is the bias of another weight, too"
    assert model.third.bias is model.second.bias


def test_positions_that_are_not_finite_are_left_out() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).masked_fill(x[:, :1] > 4, torch.nan))

    model, x = Padded(), torch.randn(64, 6)
    x[3, 0] = x[60, 0] = 9
    report = repair(model, secateur.plan_channels(model, x[:2], 0.3), x)
    assert report.after < report.before
    assert all(p.isfinite().all() for p in model.parameters())


def bad_calls() -> dict[str, tuple[Any, str]]:
    """What each does with a model and its plan, and what it is told."""
    nan = images()
    nan[0, 0, 0, 0] = torch.nan
    return {
        "no data": (lambda m, p: repair(m, p, []), "Repair has 0 examples to learn from; give at least 2"),
        "None": (lambda m, p: repair(m, p, None), "The calibration data is a NoneType; give batches of inputs"),
        "one example": (lambda m, p: repair(m, p, [images(1)]), "Repair has 1 example to learn from; give at least 2"),
        "one of many": (lambda m, p: repair(m, p, images(), examples=1), "Repair has 1 example to learn from"),
        "no memory": (lambda m, p: repair(m, p, images(), memory_gb=0), "memory_gb is 0; give a number above 0"),
        "no group": (
            lambda m, p: repair(m, p, images(), group="WORLD"),
            "group is a str; pass a process group such as",
        ),
        "no examples": (lambda m, p: repair(m, p, images(), examples=0), "examples is 0; give a whole number"),
        "labels": (
            lambda m, p: repair(m, p, [(images(), torch.zeros(48))]),
            "The model failed on a calibration batch .*; give batches of its inputs alone",
        ),
        "NaN": (lambda m, p: repair(m, p, nan), "A calibration batch holds NaN or infinite numbers; leave"),
        "another shape": (
            lambda m, p: repair(m, p, torch.randn(8, 4, 8, 8)),
            "The model failed on a calibration batch .*; give batches",
        ),
        "another shape later": (
            lambda m, p: repair(m, p, [images(), torch.randn(8, 4, 8, 8)]),
            "The model failed on a calibration batch .*; give batches",
        ),
        "not a plan": (lambda m, p: repair(m, "half", images()), "The plan is a str; pass what plan_weights or"),
        "not a model": (lambda m, p: repair(p, p, images()), "The model is a Plan; pass the nn.Module"),
        "dense is no model": (lambda m, p: repair(m, p, images(), dense=p), "The model is a Plan; pass the nn.Module"),
        "another model's plan": (
            lambda m, p: repair(Net(width=20), p, images()),
            "The plan cuts conv.weight of shape .*; use the architecture it was made for",
        ),
        "applied already": (
            lambda m, p: repair(secateur.apply(copy.deepcopy(m), p), p, images()),
            "The plan has been applied to the model already; pass the model from before as dense=",
        ),
        "not cut": (
            lambda m, p: repair(m, p, images(), dense=copy.deepcopy(m)),
            "conv.weight has not been cut yet; leave dense= out, or apply the plan first",
        ),
        "dense is cut, too": (
            lambda m, p: repair(secateur.apply(copy.deepcopy(m), p), p, images(), dense=secateur.apply(m, p)),
            "dense= has conv.weight of shape .* pass the model from before the cut",
        ),
        "dense is another": (
            lambda m, p: repair(secateur.apply(copy.deepcopy(m), p), p, images(), dense=nn.Linear(3, 3)),
            "is not in the model, in dense= and in the plan alike; pass the model from before the cut",
        ),
        "on meta": (lambda m, p: repair(m.to("meta"), p, images()), "is on the meta device; load the model's weights"),
    }


@pytest.mark.parametrize("name", bad_calls())
def test_what_cannot_be_done_is_said_in_a_sentence(name: str) -> None:
    model = net()
    call, sentence = bad_calls()[name]
    found = plan(model)
    before = everything(model)
    with pytest.raises(secateur.UsageError, match=sentence) as error:
        call(model, found)
    assert "\n" not in str(error.value)
    if name not in ("on meta", "dense is cut, too"):
        assert everything(model) == before


def test_masks_that_are_in_force_or_not_against_what_is_said() -> None:
    model = net()
    masks = secateur.plan_weights(model, 0.5)
    with pytest.raises(secateur.UsageError, match=r"conv\.weight is not zero where the masks are; leave dense= out"):
        repair(model, masks, images(), dense=copy.deepcopy(model))
    with pytest.raises(secateur.UsageError, match="applied to the model already; pass the model from before as dense="):
        repair(secateur.apply(model, masks), masks, images())


def test_activations_that_are_all_nan() -> None:
    model = net()
    found = plan(model)
    cut = secateur.apply(copy.deepcopy(model), found)
    with torch.no_grad():
        model.output.bias.fill_(torch.nan)
    before = everything(cut)
    with pytest.raises(secateur.UsageError, match="The dense model gives only NaN or infinite numbers on the calib"):
        repair(cut, found, images(), dense=model)
    assert everything(cut) == before


def test_only_the_errors_of_layers_are_said_to_be_of_examples_held_back() -> None:
    few = torch.randn(32, 24, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 4))
    report = repair(model, secateur.plan_channels(model, few[:2], 0.25), few)
    assert report.after < report.layers[-1].after / 2, "as many weights as examples fit those that were seen"
    _, outputs, layers, *_ = str(report).splitlines()
    assert "held back" not in outputs
    assert "held back" in layers


def test_the_report_says_what_was_done() -> None:
    report = repair(net(), secateur.plan_weights(net(), 0.5), [images(20), images(20), images(9)], examples=45)
    text = str(report)
    assert (report.examples, report.held_back) == (45, 11)
    assert text.startswith("Repaired: ")
    assert " fitted on 45 examples in " in text
    assert f"{report.before:.3f} → {report.after:.3f} away from the dense model's" in text
    assert [line.split()[0] for line in text.splitlines()[3:]] == [layer.name for layer in report.layers]
