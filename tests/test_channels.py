"""`plan_channels` and `inspect`: exact amounts, the right channels, honest predictions, and clear refusals."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed.fsdp
from torch import Tensor, nn
from torch.nn import functional as F

import secateur
from secateur.channels import NothingToCut
from secateur.measure.size import count_macs
from tests.architectures import ARCHITECTURES
from tests.architectures.language import LM, GroupedQueryAttention, SwiGLU
from tests.architectures.registry import call


def image(channels: int = 3, size: int = 8) -> Tensor:
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))


def rows(features: int, count: int = 4) -> Tensor:
    return torch.randn(count, features, generator=torch.Generator().manual_seed(0))


def tokens(vocabulary: int = 50) -> Tensor:
    return torch.randint(vocabulary, (2, 12), generator=torch.Generator().manual_seed(0))


def chain(width: int = 16) -> nn.Sequential:
    """Convolution, norm, ReLU, convolution: one group, between the input and the output."""
    layers = {
        "first": nn.Conv2d(3, width, 3),
        "norm": nn.BatchNorm2d(width),
        "relu": nn.ReLU(),
        "second": nn.Conv2d(width, 4, 3),
    }
    model = nn.Sequential(OrderedDict(layers))
    nn.init.normal_(model.norm.weight)
    return model


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers "0", "2", "4", … with ReLUs between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Residual(nn.Module):
    """Two layers whose outputs are added and one that reads the sum."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.branch = nn.Conv2d(width, width, 1)
        self.output = nn.Conv2d(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return self.output(x + self.branch(x))


class Embedded(nn.Module):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.output = nn.Linear(width, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(F.relu(self.embed(ids)))


def kept(plan: secateur.Plan, name: str, axis: int = 0) -> list[int]:
    return plan.tensors[name].kept[axis].tolist()


def largest(scores: Tensor, count: int) -> list[int]:
    return sorted(scores.detach().double().argsort(descending=True)[:count].tolist())


def after(plan: secateur.Plan) -> dict[str, int]:
    return {group.name: group.after for group in plan.groups}


def cut_copy(model: nn.Module, plan: secateur.Plan) -> nn.Module:
    return secateur.apply(copy.deepcopy(model), plan)


# How many


def test_half_of_256_channels_leaves_128() -> None:
    assert after(secateur.plan_channels(chain(256), image(), 0.5)) == {"first": 128}


def test_a_percentage_is_the_fraction() -> None:
    model = chain(256)
    assert secateur.plan_channels(model, image(), "50%") == secateur.plan_channels(model, image(), 0.5)


@pytest.mark.parametrize("amount", [0.1, 0.25, 1 / 3, 0.5, 0.8, 0.99])
def test_small_groups_meet_any_amount_to_the_channel(amount: float) -> None:
    assert after(secateur.plan_channels(chain(24), image(), amount)) == {"first": max(1, 24 - round(24 * amount))}


def test_a_gated_mlp_of_24_keeps_12_of_both_halves() -> None:
    model = LM(SwiGLU(32, 24))
    plan = secateur.plan_channels(model, tokens(), per_layer={"layers.0.w1": 0.5})
    cut = cut_copy(model, plan)
    assert (cut.layers[0].w1.out_features, cut.layers[0].w3.out_features, cut.layers[0].w2.in_features) == (12, 12, 12)
    assert kept(plan, "layers.0.w1.weight") == kept(plan, "layers.0.w3.weight") == kept(plan, "layers.0.w2.weight", 1)


def test_group_norm_keeps_whole_groups() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 4, 3))
    plan = secateur.plan_channels(model, image(), 0.3)
    cut = cut_copy(model, plan)
    assert cut[0].out_channels == cut[1].num_channels == 12
    assert 12 % cut[1].num_groups == 0
    assert secateur.verify(model, plan).moved


@pytest.mark.parametrize("style", ["interleave", "expand", "enable_gqa"])
def test_grouped_queries_keep_their_ratio(style: str) -> None:
    model = LM(GroupedQueryAttention(64, heads=8, kv_heads=2, style=style), dim=64)
    plan = secateur.plan_channels(model, tokens(), per_layer={"*.q_proj": 0.5})
    attention = cut_copy(model, plan).layers[0]
    assert attention.num_heads % attention.num_kv_heads == 0
    assert (
        attention.q_proj.out_features == attention.o_proj.in_features == attention.num_heads * attention.head_dim == 32
    )
    assert attention.k_proj.out_features == attention.v_proj.out_features
    assert attention.k_proj.out_features == attention.num_kv_heads * attention.head_dim
    if style != "enable_gqa":  # which alone does not read n_rep
        assert attention.num_heads == attention.n_rep * attention.num_kv_heads
    assert secateur.verify(model, plan).moved


def test_grouped_convolutions_stay_divisible() -> None:
    architecture = ARCHITECTURES["resnext"]
    model, inputs = architecture.build(), architecture.inputs()
    cut = cut_copy(model, secateur.plan_channels(model, inputs, 0.5))
    grouped = [layer for layer in cut.modules() if isinstance(layer, nn.Conv2d) and layer.groups > 1]
    assert grouped
    for layer in grouped:
        assert layer.out_channels % layer.groups == layer.in_channels % layer.groups == 0
        assert layer.weight.shape[1] == layer.in_channels // layer.groups
    assert cut(inputs).shape == model(inputs).shape


@pytest.mark.parametrize("name", ["llama", "rope_complex"])
def test_rotary_pairs_stay_together(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model, inputs = architecture.build(), architecture.inputs()
    plan = secateur.plan_channels(model, inputs, per_layer={"*.q_proj": 0.5})
    assert secateur.verify(model, plan).moved
    cut = cut_copy(model, plan)
    attention = cut.layers[0]
    assert attention.q_proj.out_features == attention.num_heads * attention.head_dim == 16
    assert attention.head_dim % 2 == 0
    assert cut(inputs).shape == model(inputs).shape


def test_a_multiple_is_met_by_every_group() -> None:
    plan = secateur.plan_channels(mlp(8, 40, 48, 100, 5), rows(8), 0.45, multiple_of=8)
    assert after(plan) == {"0": 24, "2": 24, "4": 56}


def test_a_multiple_is_met_by_convolutions_before_a_flatten() -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 36, 5))
    assert after(secateur.plan_channels(model, image(), 0.3, multiple_of=8)) == {"0": 48}


def test_a_group_smaller_than_the_multiple_stays_whole() -> None:
    assert after(secateur.plan_channels(mlp(8, 6, 32, 5), rows(8), 0.5, multiple_of=8)) == {"2": 16}


@pytest.mark.parametrize(("width", "multiple"), [(32, 2), (64, 4), (256, 16), (768, 16)])
def test_by_default_wide_groups_are_rounded_to_what_hardware_likes(width: int, multiple: int) -> None:
    for amount in (0.13, 0.29, 0.37, 0.61):
        left = after(secateur.plan_channels(mlp(8, width, 5), rows(8), amount))["0"]
        assert left % multiple == 0
        assert abs(left - (1 - amount) * width) <= multiple / 2


def test_by_default_24_channels_are_not_rounded() -> None:
    assert [after(secateur.plan_channels(mlp(8, 24, 5), rows(8), k / 24))["0"] for k in range(1, 24)] == [
        *range(23, 0, -1)
    ]


def test_what_was_removed_before_counts() -> None:
    model = mlp(8, 24, 30, 5)
    first = secateur.plan_channels(model, rows(8), 0.3)
    secateur.apply(model, first)
    second = secateur.plan_channels(model, rows(8), 0.5, already=first)
    assert after(second) == {"0": 12, "2": 15}


def test_what_was_removed_before_counts_in_the_global_scope() -> None:
    """A layer that lost nothing in the first cut because all of its channels matter loses nothing in the second."""
    model = mlp(8, 20, 20, 5)
    with torch.no_grad():
        model[2].weight[:18] *= 0.01
        model[0].weight.abs_().add_(1)
    first = secateur.plan_channels(model, rows(8), 0.2, scope="global")
    assert after(first) == {"2": 12}
    secateur.apply(model, first)
    second = secateur.plan_channels(model, rows(8), 0.4, scope="global", already=first)
    assert after(first.then(second)) == {"2": 4}


# Which


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


# Scopes, keep and per_layer


def test_the_layer_scope_removes_the_share_of_every_group() -> None:
    assert after(secateur.plan_channels(mlp(8, 10, 20, 30, 5), rows(8), 0.3)) == {"0": 7, "2": 14, "4": 21}


def normalised(model: nn.Sequential, layers: tuple[str, ...]) -> dict[str, Tensor]:
    norms = {name: model.get_parameter(f"{name}.weight").detach().double().abs().sum(1) for name in layers}
    return {name: norm / norm.mean() for name, norm in norms.items()}


def test_the_global_scope_ranks_all_groups_together() -> None:
    model = mlp(8, 10, 20, 30, 5)
    with torch.no_grad():
        model[0].weight *= 1000  # means are divided out
        model[4].weight *= torch.rand(30, 1) + 0.01  # uneven, so that this layer loses more
    plan = secateur.plan_channels(model, rows(8), 0.4, scope="global", floor=0)
    scores = normalised(model, ("0", "2", "4"))
    threshold = torch.cat([*scores.values()]).sort().values[24]
    for name, own in scores.items():
        expected = torch.arange(len(own))[own >= threshold].tolist()
        assert kept(plan, f"{name}.weight") == expected
    assert sum(after(plan).values()) == 36


@pytest.mark.parametrize(("floor", "left"), [(0.1, 2), (0.0, 1), (0.5, 10)])
def test_the_floor_stays_of_a_group_that_would_lose_everything(floor: float, left: int) -> None:
    model = mlp(8, 20, 20, 20, 5)
    with torch.no_grad():
        model[2].weight[1:] *= 1e-6
    plan = secateur.plan_channels(model, rows(8), 0.5, scope="global", floor=floor)
    assert after(plan)["2"] == left
    assert sum(after(plan).values()) == 30, "the others lose the more"


def test_a_group_of_zeros_keeps_one_unit() -> None:
    model = mlp(8, 20, 20, 5)
    nn.init.zeros_(model[2].weight)
    assert after(secateur.plan_channels(model, rows(8), 0.5, scope="global", floor=0))["2"] == 1


@pytest.mark.parametrize("seed", range(4))
def test_global_iterations_end_at_the_amount(seed: int) -> None:
    torch.manual_seed(seed)
    model = mlp(8, 20, 20, 20, 5)
    plan = secateur.plan_channels(model, rows(8), 0.5, scope="global", iterations=4)
    assert sum(after(plan).values()) == 30


def test_a_layer_that_is_kept_may_still_lose_inputs() -> None:
    model = mlp(8, 20, 20, 5)
    plan = secateur.plan_channels(model, rows(8), 0.5, keep=["2"])
    assert after(plan) == {"0": 10}
    assert plan.tensors["2.weight"].new_shape == (20, 10)
    assert ("2", "named in keep") in {(item.name, item.reason) for item in plan.left_alone}


def test_keeping_one_of_the_coupled_layers_keeps_the_group() -> None:
    model = nn.Sequential(Residual(), nn.ReLU(), nn.Conv2d(4, 2, 1))
    assert after(secateur.plan_channels(model, image(), 0.5, keep=["0.bra*"])) == {"0.output": 2}


def test_single_amounts_alone_cut_just_those_layers() -> None:
    assert after(secateur.plan_channels(mlp(8, 20, 20, 20, 5), rows(8), per_layer={"2": "25%"})) == {"2": 15}


def test_the_first_pattern_that_fits_counts() -> None:
    amounts = {"2": 0.1, "[24]": 0.25, "4": 0.9}
    plan = secateur.plan_channels(mlp(8, 20, 20, 20, 5), rows(8), 0.5, per_layer=amounts)
    assert after(plan) == {"0": 10, "2": 18, "4": 15}


def test_an_amount_of_zero_leaves_a_layer_whole() -> None:
    assert after(secateur.plan_channels(mlp(8, 20, 20, 5), rows(8), 0.5, per_layer={"2": 0})) == {"0": 10}


# What else comes along


def test_tied_weights_stay_tied() -> None:
    architecture = ARCHITECTURES["tied_embeddings"]
    model = architecture.build()
    cut = cut_copy(model, secateur.plan_channels(model, architecture.inputs(), 0.5))
    assert cut.lm_head.weight is cut.embed.weight
    assert cut.embed.weight.shape == (50, 16)


def test_frozen_layers_are_cut_as_well() -> None:
    model = chain()
    model.first.requires_grad_(False)
    plan = secateur.plan_channels(model, image(), 0.5)
    assert after(plan) == {"first": 8}
    assert [p.requires_grad for p in cut_copy(model, plan).first.parameters()] == [False, False]


@pytest.mark.parametrize("name", ["resnet_basic", "swiglu", "output_dict", "unet"])
def test_the_output_layer_is_never_cut(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model, inputs = architecture.build(), architecture.inputs()
    plan = secateur.plan_channels(model, inputs, 0.9)
    outputs, left = call(model, inputs), call(cut_copy(model, plan), inputs)
    assert shapes(outputs) == shapes(left)


def test_naming_the_output_layer_does_not_cut_it_either() -> None:
    with pytest.raises(NothingToCut, match="'2', which cannot be cut: the model's output keeps its shape"):
        secateur.plan_channels(mlp(8, 20, 5), rows(8), per_layer={"2": 0.5})


def shapes(outputs: Any) -> list[Any]:
    if isinstance(outputs, dict):
        return [shapes(value) for value in outputs.values()]
    return [tuple(outputs.shape)] if isinstance(outputs, Tensor) else [outputs]


@pytest.mark.parametrize(
    "name",
    ["resnet_basic", "resnext", "mobilenet_v2", "densenet", "unet", "swiglu", "attention_fused_matmul"],
)
def test_predicted_sizes_are_those_of_the_cut_model(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model, inputs = architecture.build(), architecture.inputs()
    plan = secateur.plan_channels(model, inputs, 0.4)
    cut = cut_copy(model, plan)
    assert plan.macs == (count_macs(model, inputs), count_macs(cut, inputs))
    assert plan.parameters == tuple(sum(p.numel() for p in each.parameters()) for each in (model, cut))


def test_the_savings_of_a_group_are_those_of_cutting_it_alone() -> None:
    architecture = ARCHITECTURES["resnet_basic"]
    model, inputs = architecture.build(), architecture.inputs()
    for group in secateur.plan_channels(model, inputs, 0.5).groups:
        alone = secateur.plan_channels(model, inputs, per_layer={group.layers[0]: 0.5})
        assert group.parameters == alone.parameters[0] - alone.parameters[1]
        assert group.macs == alone.macs[0] - alone.macs[1]


# What people read


def test_a_plan_prints_a_line_for_each_group_and_for_what_it_leaves_alone() -> None:
    architecture = ARCHITECTURES["hard_coded_sizes"]
    plan = secateur.plan_channels(architecture.build(), architecture.inputs(), 0.5)
    head, sizes, titles, group, *left = str(plan).splitlines()
    assert head == "Plan: 1 group cut, scope layer, score l1"
    assert sizes == "parameters 9,978 → 5,138 (51.5% left), MACs 1,235,264 → 617,792 (50.0% left)"
    assert titles.split() == ["group", "units", "layers", "it", "couples", "parameters", "MACs"]
    assert group.split() == ["stem.0", "16", "→", "8", "channels", "stem.0,", "conv.0", "−4,840", "−617,472"]
    assert left == [
        "left alone: conv.0: its size is a literal in the code (`view`)",
        "left alone: fc: the model's output keeps its shape",
    ]


def test_heads_are_called_heads() -> None:
    architecture = ARCHITECTURES["gqa_expand"]
    plan = secateur.plan_channels(architecture.build(), architecture.inputs(), 0.5)
    assert {group.name: group.kind for group in plan.groups}["layers.0.q_proj"] == "heads"


def test_inspect_lists_what_can_be_cut_and_why_the_rest_cannot() -> None:
    architecture = ARCHITECTURES["hard_coded_sizes"]
    model = architecture.build()
    anatomy = secateur.inspect(model, architecture.inputs())
    (group,) = anatomy.groups
    assert (group.name, group.units, group.kind, group.layers) == ("stem.0", 16, "channels", ("stem.0", "conv.0"))
    assert group.parameters == 15 * (3 * 9 + 2 + 64 * 9), "all but one: stem.0, its norm, and the inputs of conv.0"
    assert {item.name: item.reason for item in anatomy.left_alone} == {
        "conv.0": "its size is a literal in the code (`view`)",
        "fc": "the model's output keeps its shape",
    }
    assert anatomy.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert anatomy.macs == count_macs(model, architecture.inputs())
    assert str(anatomy).startswith("1 group can be cut; 9,978 parameters, 1,235,264 MACs in the example pass\n")


def test_inspect_finds_a_layer_that_the_example_does_not_use() -> None:
    model = chain()
    model.first.spare = nn.Linear(4, 4)
    left_alone = {item.name: item.reason for item in secateur.inspect(model, image()).left_alone}
    assert left_alone["first.spare"] == "the example pass does not use it"


def test_inspect_and_plan_know_the_same_groups() -> None:
    architecture = ARCHITECTURES["resnet_basic"]
    model, inputs = architecture.build(), architecture.inputs()
    anatomy, plan = secateur.inspect(model, inputs), secateur.plan_channels(model, inputs, 0.5)
    assert [(g.name, g.layers, g.units) for g in anatomy.groups] == [(g.name, g.layers, g.before) for g in plan.groups]


# Inputs and outputs of every form


class TwoInputs(nn.Module):
    """`wrap` makes the output what a test wants."""

    def __init__(self, wrap: Callable[[Tensor], Any] = lambda out: out) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 12), nn.Linear(8, 12)
        self.output = nn.Linear(12, 3)
        self.wrap = wrap

    def forward(self, a: Tensor, b: Tensor | None = None) -> Any:
        hidden = self.left(a) if b is None else self.left(a) + self.right(b)
        return self.wrap(self.output(F.relu(hidden)))


def test_arguments_come_as_a_tuple_a_list_or_a_dict() -> None:
    model, (a, b) = TwoInputs(), (rows(8), rows(8) + 1)
    plans = [secateur.plan_channels(model, given, 0.5) for given in ((a, b), [a, b], {"b": b, "a": a})]
    assert plans[0] == plans[1] == plans[2]
    assert after(plans[0]) == {"left": 6}
    assert "right.weight" in plans[0].tensors


def test_a_tensor_is_the_only_argument() -> None:
    model = chain()
    assert secateur.plan_channels(model, image(), 0.5) == secateur.plan_channels(model, (image(),), 0.5)


class Named(NamedTuple):
    logits: Tensor
    loss: Tensor | None


@pytest.mark.parametrize(
    "wrap",
    [
        lambda out: (out, None),
        lambda out: [out, 1.0],
        lambda out: {"logits": out, "loss": None, "more": {"again": (out,)}},
        lambda out: Named(out, None),
    ],
    ids=["tuple", "list", "dict", "named tuple"],
)
def test_outputs_of_any_form_keep_their_shapes(wrap: Callable[[Tensor], Any]) -> None:
    model = TwoInputs(wrap)
    plan = secateur.plan_channels(model, (rows(8), rows(8)), 0.5)
    assert set(plan.output_shapes) == {(4, 3)}
    assert secateur.verify(model, plan).moved


@pytest.mark.parametrize("name", ["output_dict", "output_dataclass"])
def test_library_outputs_keep_their_shapes(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model = architecture.build()
    assert secateur.verify(model, secateur.plan_channels(model, architecture.inputs(), 0.5)).moved


def test_a_compiled_model_is_planned_as_the_model_inside() -> None:
    model = chain()
    compiled = torch.compile(model, backend="eager")
    assert secateur.plan_channels(compiled, image(), 0.5) == secateur.plan_channels(model, image(), 0.5)


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amount": None}, "Say how much to remove"),
        ({"amount": 1.0}, "something has to remain"),
        ({"amount": 50}, r"Did you mean 0\.5"),
        ({"amount": -0.1}, r"The amount to prune is -0\.1"),
        ({"amount": "abc"}, "The amount to prune is 'abc'"),
        ({"amount": float("nan")}, "The amount to prune is nan"),
        ({"amount": 0.0}, "too small to remove a single channel"),
        ({"amount": 0.001}, "too small to remove a single channel"),
        ({"scope": "everywhere"}, "There is no scope 'everywhere'"),
        ({"score": "magnitude"}, "There is no score 'magnitude'; choose one of l1, l2"),
        ({"score": lambda name, weight: weight}, "not all finite and ≥ 0"),
        ({"score": lambda name, weight: weight.abs().sum()}, "return a tensor of shape"),
        ({"score": "taylor"}, r"needs gradients, but first\.weight has none"),
        ({"keep": ["frist"]}, "did you mean 'first'"),
        ({"keep": "first"}, "give a list of names"),
        ({"per_layer": {"frist": 0.5}}, "per_layer names 'frist'.*did you mean 'first'"),
        ({"per_layer": {"first": 2}}, "must be below 1"),
        ({"iterations": 0}, "iterations is 0; give how often to rank"),
        ({"iterations": True}, "iterations is True"),
        ({"multiple_of": 0}, "multiple_of is 0; give a whole number"),
        ({"multiple_of": 2.5}, r"multiple_of is 2\.5"),
        ({"floor": 1.5}, r"floor is 1\.5; give the share"),
        ({"keep": ["first"]}, "Nothing in the model can be cut: .*first: named in keep"),
    ],
)
def test_a_call_that_cannot_work_says_so_in_a_sentence(options: dict[str, Any], message: str) -> None:
    model = chain()
    with pytest.raises(secateur.UsageError, match=message) as caught:
        secateur.plan_channels(model, image(), **{"amount": 0.5, **options})
    assert "\n" not in str(caught.value)


def planned(model: Any, inputs: Any) -> secateur.Plan:
    return secateur.plan_channels(model, inputs, 0.5)


@pytest.mark.parametrize("function", [secateur.inspect, planned])
def test_what_is_no_model_is_refused(function: Callable[[Any, Any], Any]) -> None:
    assert torch.distributed.fsdp  # with which models are looked into for sharded parts
    with pytest.raises(secateur.UsageError, match=r"The model is a dict; pass the nn\.Module"):
        function({"weight": image()}, image())


@pytest.mark.parametrize("function", [secateur.inspect, planned])
def test_models_without_values_to_cut_are_refused(function: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(secateur.UsageError, match="no parameters"):
        function(nn.Sequential(nn.ReLU()), image())
    with pytest.raises(secateur.UsageError, match=r"0\.weight is not initialised yet; run the model once"):
        function(nn.Sequential(nn.LazyConv2d(8, 3), nn.Conv2d(8, 3, 3)), image())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_broken_weights_are_named(bad: float) -> None:
    model = chain()
    with torch.no_grad():
        model.first.weight[3, 0, 0, 0] = bad
    with pytest.raises(secateur.UsageError, match=r"first\.weight contains NaN or Inf"):
        secateur.plan_channels(model, image(), 0.5)


@pytest.mark.parametrize(
    ("inputs", "message"), [("image", "is a str"), (None, "is a NoneType"), ({0: 1}, "no argument names")]
)
def test_inputs_of_no_known_form_are_refused(inputs: Any, message: str) -> None:
    with pytest.raises(secateur.UsageError, match=message):
        secateur.plan_channels(chain(), inputs, 0.5)


def test_inputs_that_the_model_rejects_bring_its_own_words_and_change_nothing() -> None:
    model = chain().train()
    model.norm.eval()
    hook = model.first.register_forward_hook(lambda *_: None)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        secateur.UsageError, match=r"failed on the example inputs \(RuntimeError: .*channels.*pass inputs"
    ):
        secateur.plan_channels(model, image(5), 0.5)
    assert [module.training for module in model.modules()] == [True, True, False, True, True]
    assert list(model.first._forward_hooks) == [hook.id]
    assert not any(len(module._forward_pre_hooks) for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert type(model.first.out_channels) is int


def test_a_model_of_one_layer_has_nothing_to_cut() -> None:
    with pytest.raises(NothingToCut, match="the model's output keeps its shape") as caught:
        secateur.plan_channels(nn.Linear(8, 5), rows(8), 0.5)
    assert isinstance(caught.value, secateur.UsageError)
    assert "secateur.inspect" in str(caught.value)
