"""Experts that are modules of their own in a list: those that go leave the list, and the others move up."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

import secateur
from secateur.surgery import cutting
from tests.rule_cases.choosing import Listed, add_rows, at_a_mask, by_a_mask, by_position, one_by_one

FORMS = {
    "numbers": one_by_one(add_rows),
    "masks": one_by_one(at_a_mask),
    "list": by_a_mask(lambda m: len(m.experts), skip=True),
    "positions": by_position,
}
HALF: dict[str, Any] = {"per_layer": {"router": 0.5}}


def listed(form: str = "numbers", seed: int = 0) -> Listed:
    torch.manual_seed(seed)
    return Listed(FORMS[form]).eval()


def batch(seed: int = 0) -> Tensor:
    return torch.randn(64, 8, generator=torch.Generator().manual_seed(seed))


def answers(model: Listed, x: Tensor, experts: list[int]) -> Tensor:
    """What the model computes with these experts alone, token by token. The gates are of all that are left."""
    out = torch.zeros_like(x)
    for token, logits in enumerate(model.router(x)):
        gates = dict(zip(experts, logits[experts].softmax(0), strict=True))
        for e in sorted(experts, key=lambda each: float(gates[each]))[-2:]:
            out[token] += gates[e] * model.experts[e](x[token])
    return out


def kept(plan: secateur.Plan) -> list[int]:
    assert plan.lists is not None
    return [int(number) for number in plan.lists["experts"].kept]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_left_computes_what_a_model_of_those_experts_does(form: str) -> None:
    model = listed(form)
    plan = secateur.plan_channels(model, batch(), **HALF)
    whole, modules = copy.deepcopy(model), list(model.experts)
    weights = [[row, *expert.parameters()] for row, expert in zip(model.router.weight, modules, strict=True)]
    worth = [sum(weight.detach().abs().sum() for weight in own) for own in weights]
    assert kept(plan) == sorted(sorted(range(8), key=worth.__getitem__)[4:])
    secateur.apply(model, plan, verify=True)
    assert list(model.experts) == [modules[i] for i in kept(plan)]
    assert [name for name, _ in model.experts.named_children()] == ["0", "1", "2", "3"]
    with torch.no_grad():
        torch.testing.assert_close(model(batch(1)), answers(whole, batch(1), kept(plan)))
    assert sum(p.numel() for p in model.parameters()) == plan.parameters[1]


def test_the_table_tells_experts_and_the_widths_of_those_that_stay() -> None:
    plan = secateur.plan_channels(listed(), batch(), 0.5)
    router, *widths = plan.groups
    assert (router.name, router.kind, router.before, router.after) == ("router", "experts", 8, 4)
    assert router.layers == ("router", "experts")
    assert [group.name for group in widths] == [f"experts.{i}.up" for i in kept(plan)]
    model = secateur.apply(listed(), plan)
    assert {tuple(e.up.weight.shape) for e in model.experts} == {(8, 8)}  # type: ignore[union-attr]
    assert sum(p.numel() for p in model.parameters()) == plan.parameters[1]


def test_as_many_experts_stay_as_a_token_is_sent_to() -> None:
    assert len(kept(secateur.plan_channels(listed(), batch(), 0.9))) == 2


def test_a_target_counts_what_experts_hold() -> None:
    plan = secateur.plan_channels(listed(), batch(), target="params=60%", keep=["experts.*"])
    assert plan.lists is not None
    assert plan.parameters[1] <= 0.6 * plan.parameters[0]


def test_unused_experts_go_first_by_use_however_large_they_are() -> None:
    model = listed("positions")
    with torch.no_grad():
        model.router.bias.copy_(torch.tensor([0.0, -99, 0, 0, 0, 0, -99, 0]))
        for e in (1, 6):
            model.experts[e].up.weight *= 10  # type: ignore[operator, union-attr]
    options: dict[str, Any] = {"per_layer": {"router": 0.25}}
    assert kept(secateur.plan_channels(model, batch(), score="activation", **options)) == [0, 2, 3, 4, 5, 7]
    assert {1, 6} <= {*kept(secateur.plan_channels(model, batch(), **options))}


@pytest.mark.parametrize("form", FORMS)
def test_use_is_the_mean_of_what_an_expert_adds_to_its_tokens(form: str) -> None:
    model, x = listed(form), batch(1)
    with torch.no_grad():
        gates, chosen = model.router(x).softmax(-1).topk(2)
        means = [
            (gates[chosen == e][:, None] * model.experts[e](x[(chosen == e).any(1)])).norm(dim=1).mean()
            for e in range(8)
        ]
    plan = secateur.plan_channels(model, batch(), score="activation", data=[x], **HALF)
    assert kept(plan) == sorted(sorted(range(8), key=means.__getitem__)[4:])


@pytest.mark.parametrize("form", ["list", "positions"])
def test_experts_that_no_example_reaches_are_cut_like_the_others(form: str) -> None:
    model = listed(form)
    few = batch()[:2]
    assert len(model.router(few).topk(2)[1].unique()) < 5
    plan = secateur.plan_channels(model, few, 0.5, keep_indices={"router": [0, 1, 2, 3]})
    assert kept(plan) == [0, 1, 2, 3]
    assert {plan.tensors[f"experts.{i}.up.weight"].new_shape for i in range(4)} == {(8, 8)}
    assert secateur.verify(model, plan, batch()).moved


def test_a_number_that_is_as_long_by_chance_stays() -> None:
    model = listed("list")
    assert secateur.apply(model, secateur.plan_channels(model, batch(), **HALF)).count == 8
    model = listed("numbers")
    assert secateur.apply(model, secateur.plan_channels(model, batch(), **HALF)).count == 4


def test_capturing_leaves_the_lists_as_they_were() -> None:
    model = listed("positions")
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    secateur.plan_channels(model, batch(), 0.5)
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before
    assert model.experts[torch.tensor(3)] is list(model.experts)[3]  # type: ignore[index]


def test_a_saved_plan_cuts_another_copy_and_keeps_the_optimizer(tmp_path: Path) -> None:
    plan = secateur.plan_channels(listed(), batch(), 0.5)
    plan.save(tmp_path / "plan.json")
    again = secateur.Plan.load(tmp_path / "plan.json")
    assert again == plan
    model = listed()
    optimizer = torch.optim.Adam(model.parameters())
    model(batch()).sum().backward()
    optimizer.step()
    moments = copy.deepcopy(optimizer.state[model.experts[kept(plan)[0]].up.bias]["exp_avg"])  # type: ignore[index, union-attr]
    secateur.apply(model, again, optimizer=optimizer)
    left = plan.tensors[f"experts.{kept(plan)[0]}.up.bias"].kept[0]
    assert torch.equal(optimizer.state[model.experts[0].up.bias]["exp_avg"], moments[left])  # type: ignore[index, union-attr]
    before = copy.deepcopy(model.state_dict())
    model(batch()).sum().backward()
    optimizer.step()
    assert not torch.equal(model.state_dict()["experts.3.up.weight"], before["experts.3.up.weight"])


def test_two_plans_are_one() -> None:
    whole = listed()
    first = secateur.plan_channels(whole, batch(), 0.25)
    model = secateur.apply(copy.deepcopy(whole), first)
    second = secateur.plan_channels(model, batch(), 0.5, previous=first)
    secateur.apply(model, second)
    both = first.then(second)
    assert kept(both) == [kept(first)[i] for i in kept(second)]
    assert {group.name: group.after for group in both.groups}["router"] == 4
    at_once = secateur.apply(copy.deepcopy(whole), both, example_inputs=batch())
    with torch.no_grad():
        torch.testing.assert_close(at_once(batch(1)), model(batch(1)))
    assert secateur.Plan.from_json(both.to_json()) == both


def test_a_checkpoint_rebuilds_the_shorter_list(tmp_path: Path) -> None:
    whole = listed()
    first = secateur.plan_channels(whole, batch(), **HALF)
    with pytest.raises(secateur.UsageError, match=r"leaves 4 modules in experts, .* apply the plan first"):
        secateur.save(whole, first, tmp_path / "a")
    model = secateur.apply(whole, first)
    second = secateur.plan_channels(model, batch(), 0.25)
    secateur.apply(model, second)
    masks = secateur.plan_weights(model, 0.5)
    secateur.save(secateur.apply(model, masks), [first, second, masks], tmp_path / "b")
    again = secateur.load(tmp_path / "b", lambda: listed(seed=1)).eval()
    assert again.state_dict().keys() == model.state_dict().keys()
    with torch.no_grad():
        assert torch.equal(again(batch()), model(batch()))
    with pytest.raises(secateur.UsageError, match="in the order they were applied"):
        secateur.save(model, [first, first], tmp_path / "c")


def test_whatever_fails_leaves_the_list_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = listed()
    plan = secateur.plan_channels(model, batch(), 0.5)
    modules, before = list(model.experts), copy.deepcopy(model.state_dict())

    def fail(*_: Any) -> None:
        assert len(model.experts) == 4
        raise MemoryError

    monkeypatch.setattr(cutting, "_update_descriptions", fail)
    with pytest.raises(MemoryError):
        secateur.apply(model, plan, verify=False)
    assert list(model.experts) == modules
    assert model.count == 8
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_a_plan_for_another_list_is_refused() -> None:
    plan = secateur.plan_channels(listed(), batch(), **HALF)
    model = listed()
    model.experts.append(copy.deepcopy(model.experts[0]))
    with pytest.raises(secateur.UsageError, match="takes modules from experts, a list of 8"):
        secateur.apply(model, plan)
    gone = min({*range(8)} - {*kept(plan)})
    model = listed()
    model.shared = model.experts[gone]
    with pytest.raises(secateur.UsageError, match="which something else needs"):
        secateur.apply(model, plan)
    assert len(model.experts) == 8


@pytest.mark.parametrize("kept_numbers", [[], [0, 8], [2, 1], [-1, 2], [0, 1, 2, 3, 4, 5, 6, 7]])
def test_a_forged_list_is_refused(kept_numbers: list[int]) -> None:
    stored = secateur.plan_channels(listed(), batch(), **HALF).to_json()
    stored["lists"]["experts"]["kept"] = kept_numbers
    with pytest.raises(secateur.SecateurError):
        secateur.Plan.from_json(stored)


def test_repair_knows_the_experts_by_their_old_names() -> None:
    model = listed()
    plan = secateur.plan_channels(model, batch(), 0.5)
    data = [batch(seed) for seed in range(4)]
    repaired = secateur.repair(model, plan, data, progress=False)
    names = {layer.name for layer in repaired.layers}
    assert {f"experts.{i}.down.weight" for i in kept(plan)} <= names
    assert not any(f"experts.{i}.down.weight" in names for i in {*range(8)} - {*kept(plan)})
    assert repaired.after <= repaired.before


class LoopedConfig(PretrainedConfig):
    model_type = "looped"

    def __init__(self, num_local_experts: int = 8, **more: Any) -> None:
        self.num_local_experts = num_local_experts
        super().__init__(**more)


class Looped(PreTrainedModel):
    """As models of transformers 4 were."""

    config_class = LoopedConfig

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList(listed("list") for _ in range(2))
        for layer in self.layers:
            layer.count = config.num_local_experts
            layer.router = nn.Linear(8, config.num_local_experts)
            layer.experts = nn.ModuleList(list(layer.experts)[: config.num_local_experts])  # type: ignore[arg-type]
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_from_pretrained_builds_the_shorter_lists(tmp_path: Path) -> None:
    model = Looped(LoopedConfig()).eval()
    plan = secateur.plan_channels(model, batch(), per_layer={"layers.*.router": 0.5})
    with warnings.catch_warnings():
        warnings.simplefilter("error", secateur.SecateurWarning)
        secateur.apply(model, plan)
    assert (model.config.num_local_experts, [layer.count for layer in model.layers]) == (4, [4, 4])
    model.save_pretrained(tmp_path / "transformers")
    secateur.save(model, plan, tmp_path / "secateur")
    with torch.no_grad():
        for folder in ("transformers", "secateur"):
            again = Looped.from_pretrained(tmp_path / folder).eval()
            torch.testing.assert_close(again(batch()), model(batch()))


def test_a_config_that_has_one_number_for_all_layers_is_told() -> None:
    model = Looped(LoopedConfig()).eval()
    plan = secateur.plan_channels(model, batch(), per_layer={"layers.1.router": 0.5})
    with pytest.warns(secateur.SecateurWarning, match=r"its config has no number for the width of layers.1.router"):
        secateur.apply(model, plan)
