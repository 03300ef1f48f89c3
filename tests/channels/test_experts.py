"""Mixtures of experts: whole experts go, and with them the router's rows for them."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur
from tests.hf_zoo import ZOO
from tests.rule_cases.choosing import Mixture, grouped, looked_up

FORMS = ("grouped_mm", "batched_mm", "eager")


def mixture() -> Mixture:
    torch.manual_seed(0)
    return Mixture(grouped(lambda m, e: e.bincount(minlength=m.experts))).eval()


def batch(seed: int = 0) -> Tensor:
    return torch.randn(64, 8, generator=torch.Generator().manual_seed(seed))


def answers(model: Any, x: Tensor, experts: list[int]) -> Tensor:
    """What a `Mixture` computes with these experts alone, token by token."""
    logits = model.router(x)
    out = torch.zeros_like(x)
    for token in range(len(x)):
        gates = {e: float(logits[token, e].exp() / logits[token, experts].exp().sum()) for e in experts}
        for e in sorted(experts, key=gates.__getitem__)[-2:]:
            said = (x[token] @ model.up[e]).relu() @ model.down[e] * model.scale[e]
            out[token] += gates[e] * said
    return out


def experts_of(plan: secateur.Plan) -> dict[str, tuple[int, int]]:
    return {group.name: (group.before, group.after) for group in plan.groups if group.kind == "experts"}


def kept_experts(plan: secateur.Plan, name: str = "router.weight") -> list[int]:
    return [int(expert) for expert in plan.tensors[name].kept[0]]


ONLY_EXPERTS = {"per_layer": {"router": 0.5}}


def test_what_is_left_computes_what_a_model_of_those_experts_does() -> None:
    model = mixture()
    plan = secateur.plan_channels(model, batch(), **ONLY_EXPERTS)
    assert experts_of(plan) == {"router": (8, 4)}
    strongest = sum(
        weight.abs().flatten(1).sum(1) for weight in (model.up, model.down, model.scale, model.router.weight)
    )
    assert kept_experts(plan) == sorted(strongest.topk(4).indices.tolist())
    with torch.no_grad():
        expected = answers(copy.deepcopy(model), batch(1), kept_experts(plan))
        secateur.apply(model, plan, verify=True)
        torch.testing.assert_close(model(batch(1)), expected)
    assert model.experts == 4
    assert [tuple(each.shape) for each in (model.router.weight, model.up, model.down)] == [
        (4, 8),
        (4, 8, 16),
        (4, 16, 8),
    ]


@pytest.mark.parametrize("options", [{}, {"scope": "global"}])
def test_as_many_experts_stay_as_a_token_is_sent_to(options: dict[str, Any]) -> None:
    plan = secateur.plan_channels(mixture(), batch(), 0.9, **options)
    assert experts_of(plan) == {"router": (8, 2)}
    assert secateur.verify(mixture(), plan).moved


def test_a_target_leaves_as_many_as_well() -> None:
    plan = secateur.plan_channels(mixture(), batch(), target="params=10%", floor=0.0)
    assert experts_of(plan) == {"router": (8, 2)}


def test_experts_that_all_serve_every_token_stay() -> None:
    model = Mixture(looked_up(lambda weight, chosen: weight[chosen]), experts=2).eval()
    left_alone = {item.name: item.reason for item in secateur.inspect(model, batch()).left_alone}
    assert left_alone["router"] == "an operator needs all of its units at once"


class Telling(Mixture):
    """Says which experts it chose."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x), self.router(x).topk(2)[1]


def test_experts_stay_where_the_model_returns_their_numbers() -> None:
    model = Telling(looked_up(lambda weight, chosen: weight[chosen])).eval()
    left_alone = {item.name: item.reason for item in secateur.inspect(model, batch()).left_alone}
    assert left_alone["router"] == "the model's output '1' names its coordinates by numbers"
    assert experts_of(secateur.plan_channels(model, batch(), 0.5, outputs=[0])) == {"router": (8, 4)}


def test_experts_are_not_rounded_to_multiples() -> None:
    plan = secateur.plan_channels(mixture(), batch(), 0.4, multiple_of=8)
    assert experts_of(plan) == {"router": (8, 5)}
    assert plan.tensors["up"].new_shape[2] == 8


def test_keep_of_the_router_keeps_the_experts_and_cuts_their_widths() -> None:
    plan = secateur.plan_channels(mixture(), batch(), 0.5, keep=["router"])
    assert plan.tensors["up"].new_shape == (8, 8, 8)


def test_unused_experts_go_first_by_use_however_large_they_are() -> None:
    """Experts 1 and 6 are the largest, but no token is sent to them; 3 is sent few, to which it adds much."""
    model = mixture()
    with torch.no_grad():
        model.router.bias.copy_(torch.tensor([0.0, -99, 0, 0, 0, 0, -99, 0]))
        model.up[[1, 6]] *= 10
        model.down[3] *= 10
    options: dict[str, Any] = {"per_layer": {"router": 0.25}}
    assert kept_experts(secateur.plan_channels(model, batch(), score="activation", **options)) == [0, 2, 3, 4, 5, 7]
    assert {1, 6} <= {*kept_experts(secateur.plan_channels(model, batch(), **options))}


def test_use_is_the_mean_of_what_an_expert_adds_to_its_tokens() -> None:
    model, data = mixture(), [batch(0), batch(1)]
    added: dict[int, list[float]] = {e: [] for e in range(8)}
    with torch.no_grad():
        for x in data:
            gates, chosen = model.router(x).softmax(-1).topk(2)
            for token, (weights, experts) in enumerate(zip(gates, chosen.tolist(), strict=True)):
                for gate, e in zip(weights, experts, strict=True):
                    said = (x[token] @ model.up[e]).relu() @ model.down[e] * model.scale[e]
                    added[e].append(float((gate * said).norm()))
    means = {e: sum(each) / max(1, len(each)) for e, each in added.items()}
    plan = secateur.plan_channels(model, batch(), per_layer={"router": 0.5}, score="activation", data=data)
    assert kept_experts(plan) == sorted(sorted(means, key=means.__getitem__)[4:])


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_transformers(form: str) -> None:
    model, inputs = ZOO["mixtral"].build().eval(), ZOO["mixtral"].inputs()
    model.set_experts_implementation(form)
    plan = secateur.plan_channels(model, inputs, 0.5)
    assert experts_of(plan) == {"model.layers.0.mlp.gate": (4, 2), "model.layers.1.mlp.gate": (4, 2)}
    assert secateur.verify(model, plan).moved


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_from_pretrained_builds_as_many_experts(name: str, tmp_path: Path) -> None:
    model, inputs = ZOO[name].build().eval(), ZOO[name].inputs()
    plan = secateur.plan_channels(model, inputs, per_layer={"*.mlp.gate": 0.5})
    with warnings.catch_warnings():
        warnings.simplefilter("error", secateur.SecateurWarning)
        secateur.apply(model, plan)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert again.config.num_local_experts == model.config.num_local_experts == 2
    with torch.no_grad():
        torch.testing.assert_close(again(**inputs).logits, model(**inputs).logits)


class PicksByWeight(nn.Module):
    """Beside a router, channels are picked by a weight, which no data chose."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router, self.experts = nn.Linear(6, 4), nn.Parameter(torch.randn(4, 6, 6))
        self.first, self.last = nn.Linear(6, 8), nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.tensor([1.0, 2, 0, 3, 4, 0, 5, 6]))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).topk(2)
        x = x + (weights[..., None, None] * self.experts[chosen] @ x[:, None, :, None]).sum(1).squeeze(-1)
        return self.last(self.first(x)[:, self.scale.abs().nonzero()[:, 0]])


def test_what_a_weight_picks_is_not_taken_for_a_choice_of_the_data() -> None:
    plan = secateur.plan_channels(PicksByWeight().eval(), torch.randn(5, 6), 0.5)
    assert [(group.name, group.after) for group in plan.groups] == [("router", 2)]
    assert {item.name: item.reason for item in plan.left_alone}["first"] == "it is indexed by numbers (`index`)"
