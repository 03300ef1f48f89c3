"""Which channels go: every score against one computed by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.distributed.fsdp
from torch import Tensor, nn

import secateur
from tests.support.chains import Embedded, Residual, after, chain, image, kept, largest, mlp, rows, tokens


def test_the_channels_with_the_largest_l1_norm_stay() -> None:
    model = chain()
    plan = secateur.plan_channels(model, image(), 0.5)
    expected = largest(model.first.weight.abs().sum((1, 2, 3)), 8)
    assert kept(plan, "first.weight") == kept(plan, "second.weight", 1) == expected
    for name in ("first.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"):
        assert kept(plan, name) == expected
    assert set(plan.tensors["second.weight"].kept) == {1}, "the output is not touched"


def test_the_channels_with_the_largest_l2_norm_stay() -> None:
    model = chain()
    plan = secateur.plan_channels(model, image(), 0.5, score="l2")
    norms = model.first.weight.square().sum((1, 2, 3)).sqrt()
    assert kept(plan, "first.weight") == largest(norms, 8)
    assert kept(plan, "first.weight") != largest(model.first.weight.abs().sum((1, 2, 3)), 8), "it differs from L1 here"


@pytest.mark.parametrize("score", ["l1", "l2"])
def test_coupled_layers_are_scored_together(score: str) -> None:
    model = Residual()
    plan = secateur.plan_channels(model, image(), 0.5, score=score)
    joined = torch.cat([model.stem.weight.flatten(1), model.branch.weight.flatten(1)], 1)
    norms = joined.abs().sum(1) if score == "l1" else joined.square().sum(1).sqrt()
    expected = largest(norms, 6)
    assert kept(plan, "stem.weight") == kept(plan, "branch.weight") == kept(plan, "branch.weight", 1) == expected


def test_linear_layers_are_scored_by_their_rows() -> None:
    model = mlp(8, 20, 5)
    plan = secateur.plan_channels(model, rows(8), 0.4)
    assert kept(plan, "0.weight") == largest(model[0].weight.abs().sum(1), 12)


def test_embeddings_are_scored_by_their_columns() -> None:
    model = Embedded()
    plan = secateur.plan_channels(model, tokens(20), 0.5)
    assert kept(plan, "embed.weight", 1) == largest(model.embed.weight.abs().sum(0), 6)
    assert set(plan.tensors["embed.weight"].kept) == {1}, "the vocabulary stays"


def test_batch_norm_scales_decide_if_asked() -> None:
    model = chain()
    plan = secateur.plan_channels(model, image(), 0.5, score="batch-norm")
    assert kept(plan, "first.weight") == largest(model.norm.weight.abs(), 8)


def test_groups_without_a_batch_norm_are_left_alone_by_that_score() -> None:
    model = nn.Sequential(chain(), nn.Conv2d(4, 6, 1), nn.Conv2d(6, 3, 1))
    plan = secateur.plan_channels(model, image(), 0.5, score="batch-norm")
    assert after(plan) == {"0.first": 8}
    assert ("1", "no batch norm scales its channels") in {(item.name, item.reason) for item in plan.left_alone}


def test_taylor_multiplies_weights_and_gradients() -> None:
    model = chain()
    model(image()).square().mean().backward()
    plan = secateur.plan_channels(model, image(), 0.5, score="taylor")
    assert model.first.weight.grad is not None
    expected = largest((model.first.weight * model.first.weight.grad).abs().sum((1, 2, 3)), 8)
    assert kept(plan, "first.weight") == expected


@pytest.mark.parametrize("batches", [0, 3])
def test_activations_are_measured_where_the_next_layer_reads_them(batches: int) -> None:
    model = chain().eval()
    data = [torch.randn(4, 3, 8, 8) for _ in range(batches)]
    plan = secateur.plan_channels(model, image(), 0.5, score="activation", data=data)
    with torch.no_grad():
        means = [model.relu(model.norm(model.first(batch))).abs().mean((0, 2, 3)) for batch in data or [image()]]
    assert kept(plan, "first.weight") == largest(torch.stack(means).mean(0), 8)


def test_activations_of_linear_layers_are_measured() -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    inputs = torch.randn(5, 6)
    plan = secateur.plan_channels(model, inputs, 0.5, score="activation")
    with torch.no_grad():
        first, second = (model[:end](inputs).abs().mean(0) for end in (2, 4))
    assert kept(plan, "0.weight") == largest(first, 8)
    assert kept(plan, "2.weight") == largest(second, 8)


def test_random_scores_are_the_same_every_time() -> None:
    model = chain()
    plan = secateur.plan_channels(model, image(), 0.5, score="random")
    torch.manual_seed(1)
    assert plan == secateur.plan_channels(model, image(), 0.5, score="random")
    assert plan.tensors != secateur.plan_channels(model, image(), 0.5).tensors


def test_a_function_of_name_and_values_is_summed_up_over_each_channel() -> None:
    model = chain()
    seen: list[str] = []

    def largest_weight(name: str, weight: Tensor) -> Tensor:
        seen.append(name)
        return weight.detach().abs() ** 8

    plan = secateur.plan_channels(model, image(), 0.5, score=largest_weight)
    assert kept(plan, "first.weight") == largest((model.first.weight.abs() ** 8).sum((1, 2, 3)), 8)
    assert set(seen) == {"first.weight"}
    assert plan.score == "largest_weight"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_are_ranked_exactly(dtype: torch.dtype) -> None:
    model = chain().to(dtype)
    plan = secateur.plan_channels(model, image().to(dtype), 0.5)
    assert kept(plan, "first.weight") == largest(model.first.weight.float().abs().sum((1, 2, 3)), 8)


def test_ties_break_the_same_way_every_time() -> None:
    model = chain()
    nn.init.constant_(model.first.weight, 0.5)
    plan = secateur.plan_channels(model, image(), 0.5)
    assert plan == secateur.plan_channels(copy.deepcopy(model), image(), 0.5)
    assert len(kept(plan, "first.weight")) == 8


def test_iterations_rank_again_over_what_is_left() -> None:
    """A chain of two layers: the second one's rows lose what the first one's channels brought."""
    model = mlp(10, 24, 24, 5)
    with torch.no_grad():
        model[2].weight *= torch.linspace(0.1, 3, 24)  # the columns differ, so that losing some changes the ranking
    plan = secateur.plan_channels(model, rows(10), 0.5, iterations=3)
    alive = [np.ones(24, bool), np.ones(24, bool)]
    for i in range(3):
        scores = [
            model[0].weight.detach().abs().double().sum(1).numpy(),
            model[2].weight.detach().abs().double().numpy()[:, alive[0]].sum(1),
        ]
        left = 24 - round((1 - 0.5 ** ((i + 1) / 3)) * 24)
        for flags, own in zip(alive, scores, strict=True):
            order = sorted(np.flatnonzero(flags), key=lambda unit, own=own: own[unit])
            flags[order[: len(order) - left]] = False
    assert kept(plan, "0.weight") == np.flatnonzero(alive[0]).tolist()
    assert kept(plan, "2.weight") == np.flatnonzero(alive[1]).tolist()
    assert plan.tensors != secateur.plan_channels(model, rows(10), 0.5).tensors, "one ranking gives something else"
