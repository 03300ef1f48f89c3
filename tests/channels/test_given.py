"""What the caller hands over: scores for each channel, the very channels that stay, and layers that keep theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import secateur
from tests.architectures.language import LM, GroupedQueryAttention
from tests.support.chains import Residual, after, chain, image, kept, largest, mlp, rows, tokens

# The channels that stay


def test_the_named_channels_stay_and_nothing_else_is_cut() -> None:
    model = mlp(8, 20, 20, 5)
    plan = secateur.plan_channels(model, rows(8), keep_indices={"0": [3, 0, 5]})
    assert kept(plan, "0.weight") == kept(plan, "0.bias") == kept(plan, "2.weight", 1) == [0, 3, 5]
    assert after(plan) == {"0": 3}
    assert secateur.verify(model, plan).moved


@pytest.mark.parametrize("options", [{}, {"scope": "global"}, {"iterations": 2}])
def test_the_other_layers_lose_the_amount(options: dict[str, Any]) -> None:
    plan = secateur.plan_channels(mlp(8, 64, 20, 5), rows(8), 0.5, keep_indices={"0": [1, 2, 60]}, **options)
    assert kept(plan, "0.weight") == [1, 2, 60], "not rounded, and not counted in the amount"
    assert after(plan)["2"] == 10


def test_the_other_layers_are_cut_until_a_target_is_met() -> None:
    model = mlp(8, 64, 64, 5)
    stay = list(range(0, 64, 2))
    plan = secateur.plan_channels(model, rows(8), keep_indices={"0": stay}, target="params=0.3")
    assert kept(plan, "0.weight") == stay
    assert plan.parameters[1] == plan.outcome.reached <= 0.3 * plan.parameters[0]


@pytest.mark.parametrize("name", ["stem", "branch", "branch.weight", "bran*"])
def test_coupled_layers_follow(name: str) -> None:
    plan = secateur.plan_channels(Residual(), image(), keep_indices={name: torch.tensor([1, 7, 8])})
    assert kept(plan, "stem.weight") == kept(plan, "branch.weight") == kept(plan, "output.weight", 1) == [1, 7, 8]


def test_coupled_layers_may_say_the_same() -> None:
    plan = secateur.plan_channels(Residual(), image(), keep_indices={"stem": [1, 7], "branch": np.array([7, 1])})
    assert kept(plan, "stem.weight") == [1, 7]


def test_whole_heads_may_be_named() -> None:
    model = LM(GroupedQueryAttention(64, heads=8, kv_heads=8), dim=64)
    stay = [*range(8, 24), *range(40, 56)]
    plan = secateur.plan_channels(model, tokens(), keep_indices={"layers.0.q_proj": stay})
    for name in ("q_proj", "k_proj", "v_proj"):
        assert kept(plan, f"layers.0.{name}.weight") == stay
    assert secateur.verify(model, plan).moved


@pytest.mark.parametrize(
    ("model", "inputs", "indices", "message"),
    [
        (
            Residual(),
            image(),
            {"stem": [1], "branch": [2]},
            "than of .stem., but the two are coupled",
        ),
        (mlp(8, 20, 5), rows(8), {"1": [0]}, "nothing prunable in the model is called that"),
        (Residual(), image(), {"sten": [0]}, "did you mean 'stem'"),
        (mlp(8, 20, 5), rows(8), {"2": [0, 1]}, "'2', which cannot be cut: the model's output keeps its shape"),
        (mlp(8, 20, 5), rows(8), {"0": [20]}, "whole numbers from 0 to 19"),
        (mlp(8, 20, 5), rows(8), {"0": [-1]}, "whole numbers from 0 to 19"),
        (mlp(8, 20, 5), rows(8), {"0": [0.5]}, "whole numbers from 0 to 19"),
        (mlp(8, 20, 5), rows(8), {"0": []}, "at least one of its channels"),
        (mlp(8, 20, 5), rows(8), {"0": ["a"]}, "no list of finite numbers"),
        (mlp(8, 20, 5), rows(8), [0], "give a dict such as"),
        (LM(GroupedQueryAttention(64, 8, 8), dim=64), tokens(), {"layers.0.q_proj": range(12)}, "that go together"),
    ],
)
def test_channels_that_cannot_be_kept_so_are_refused_in_a_sentence(
    model: nn.Module, inputs: Any, indices: Any, message: str
) -> None:
    with pytest.raises(secateur.UsageError, match=message):
        secateur.plan_channels(model, inputs, keep_indices=indices)


def test_channels_of_a_layer_that_keeps_all_of_them_are_refused() -> None:
    with pytest.raises(secateur.UsageError, match="keep_indices names '0', which cannot be cut: named in keep"):
        secateur.plan_channels(mlp(8, 20, 20, 5), rows(8), 0.5, keep=["0"], keep_indices={"0": [1]})


# Scores for each channel


@pytest.mark.parametrize("form", [torch.tensor, np.asarray, list])
def test_given_scores_rank_the_channels_and_others_are_ranked_by_l1(form: Any) -> None:
    model = mlp(8, 20, 20, 5)
    scores = torch.rand(20, generator=torch.Generator().manual_seed(1)).tolist()
    plan = secateur.plan_channels(model, rows(8), 0.4, score={"0": form(scores)})
    assert kept(plan, "0.weight") == largest(torch.tensor(scores), 12)
    assert kept(plan, "2.weight") == largest(model[2].weight.abs().sum(1), 12)
    assert plan.score == "given"


def test_the_scores_of_a_layer_count_for_those_it_is_coupled_with() -> None:
    scores = torch.arange(12.0)
    plan = secateur.plan_channels(Residual(), image(), 0.5, score={"branch": scores})
    assert kept(plan, "stem.weight") == kept(plan, "branch.weight") == [6, 7, 8, 9, 10, 11]


def test_the_scores_of_coupled_layers_are_added() -> None:
    first, second = torch.randn(12).abs(), torch.randn(12).abs()
    plan = secateur.plan_channels(Residual(), image(), 0.5, score={"stem": first, "branch": second})
    assert kept(plan, "stem.weight") == largest(first + second, 6)


def test_given_scores_decide_between_groups_as_well() -> None:
    model = mlp(8, 20, 20, 5)
    equal, uneven = torch.ones(20), torch.cat([torch.full((10,), 0.01), torch.full((10,), 2.0)])
    plan = secateur.plan_channels(model, rows(8), 0.25, scope="global", score={"0": equal, "2": uneven})
    assert after(plan) == {"2": 10}


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ({"first": torch.ones(15)}, "gives 'first' 15 numbers, but it has 16 channels"),
        ({"frist": torch.ones(16)}, "did you mean 'first'"),
        ({"second": torch.ones(4)}, "score names 'second', which cannot be cut: the model's output"),
        ({"first": torch.full((16,), torch.nan)}, "no list of finite numbers"),
        ({"first": torch.ones(16, 1)}, "no list of finite numbers"),
    ],
)
def test_scores_that_do_not_fit_are_refused_in_a_sentence(score: Any, message: str) -> None:
    with pytest.raises(secateur.UsageError, match=message):
        secateur.plan_channels(chain(), image(), 0.5, score=score)


# Layers that keep all of theirs


def test_keep_takes_modules_as_well_as_names() -> None:
    model = mlp(8, 20, 20, 20, 5)
    by_module = secateur.plan_channels(model, rows(8), 0.5, keep=[model[2], "4"])
    assert by_module == secateur.plan_channels(model, rows(8), 0.5, keep=["2", "4"])
    assert after(by_module) == {"0": 10}


def test_zeros_keep_modules_as_well() -> None:
    model = mlp(8, 20, 20, 5)
    assert secateur.plan_weights(model, 0.5, keep=[model[2]]).layers.keys() == {"0.weight", "4.weight"}
    nested = nn.Sequential(model, nn.Linear(5, 5))
    assert secateur.plan_weights(nested, 0.5, keep=[model]).layers.keys() == {"1.weight"}


@pytest.mark.parametrize("plan", [secateur.plan_weights, lambda m, a, **k: secateur.plan_channels(m, rows(8), a, **k)])
def test_a_module_of_another_model_is_refused(plan: Any) -> None:
    with pytest.raises(secateur.UsageError, match="keep holds a Linear that is no layer of the model"):
        plan(mlp(8, 20, 5), 0.5, keep=[nn.Linear(8, 20)])
