"""How many channels go: amounts, rounding, scopes, keep and per_layer."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.fsdp
from torch import Tensor, nn

import secateur
from tests.architectures import ARCHITECTURES
from tests.architectures.language import LM, GroupedQueryAttention, SwiGLU
from tests.support.chains import Residual, after, chain, cut_copy, image, kept, mlp, rows, tokens

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


@pytest.mark.parametrize(("width", "multiple"), [(32, 8), (64, 16), (256, 16), (768, 16)])
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
    second = secateur.plan_channels(model, rows(8), 0.5, previous=first)
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
    second = secateur.plan_channels(model, rows(8), 0.4, scope="global", previous=first)
    assert after(first.then(second)) == {"2": 4}


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
