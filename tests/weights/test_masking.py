"""`plan_weights`: exact amounts, what is pruned and what is left alone, and the model untouched."""

import copy
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import secateur
from tests.support.models import ConvNet

PRUNABLE = ("conv.weight", "hidden.weight", "output.weight")


def magnitudes(model: nn.Module, names: tuple[str, ...] = PRUNABLE) -> np.ndarray:
    parameters = dict(model.named_parameters())
    return np.concatenate([parameters[name].detach().double().abs().numpy().ravel() for name in names])


def pruned_flags(masks: secateur.Masks) -> np.ndarray:
    return np.concatenate([layer.pruned().numpy().ravel() for layer in masks.layers.values()])


@given(st.floats(0, 1, exclude_max=True))
def test_a_global_amount_prunes_exactly_the_smallest(amount: float) -> None:
    torch.manual_seed(1)
    model = ConvNet()
    values = magnitudes(model)
    expected = np.zeros(len(values), bool)
    expected[np.argsort(values, kind="stable")[: round(amount * len(values))]] = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", secateur.SecateurWarning)  # near 1, whole layers go
        np.testing.assert_array_equal(pruned_flags(secateur.plan_weights(model, amount)), expected)


def test_layer_scope_prunes_the_same_share_of_each_layer(convnet: ConvNet) -> None:
    masks = secateur.plan_weights(convnet, "75%", scope="layer")
    assert {name: layer.zeros for name, layer in masks.layers.items()} == {
        name: round(0.75 * convnet.get_parameter(name).numel()) for name in PRUNABLE
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_are_exact_too(convnet: ConvNet, dtype: torch.dtype) -> None:
    model = convnet.to(dtype)
    masks = secateur.plan_weights(model, 0.9)
    values = magnitudes(model)
    assert masks.zeros == round(0.9 * len(values))
    expected = np.zeros(len(values), bool)
    expected[np.argsort(values, kind="stable")[: masks.zeros]] = True
    np.testing.assert_array_equal(pruned_flags(masks), expected)


def test_ties_break_the_same_way_every_time() -> None:
    model = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 30))
    nn.init.constant_(model[0].weight, 0.5)
    nn.init.constant_(model[1].weight, -0.5)
    first = secateur.plan_weights(model, 0.3)
    assert first == secateur.plan_weights(copy.deepcopy(model), 0.3)
    assert pruned_flags(first).tolist() == [True] * 540 + [False] * 1260


def test_biases_norms_and_embeddings_are_kept_unless_included() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(10, 8), "norm": nn.LayerNorm(8), "linear": nn.Linear(8, 8)})
    assert list(secateur.plan_weights(model, 0.5).layers) == ["linear.weight"]
    asked = secateur.plan_weights(model, 0.5, include=["embed", "linear.bias"])
    assert list(asked.layers) == ["embed.weight", "linear.weight", "linear.bias"]
    assert asked.zeros == round(0.5 * (80 + 64 + 8))


def test_attention_and_recurrent_projections_are_pruned() -> None:
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(8, 2), "lstm": nn.LSTM(8, 8)})
    assert list(secateur.plan_weights(model, 0.5).layers) == [
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "lstm.weight_ih_l0",
        "lstm.weight_hh_l0",
    ]


def test_a_parameter_of_unknown_purpose_is_left_alone_and_reported() -> None:
    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.position = nn.Parameter(torch.randn(16, 4))

    masks = secateur.plan_weights(Custom(), 0.5)
    assert list(masks.layers) == ["linear.weight"]
    assert "position" in str(masks)
    assert "position" in secateur.plan_weights(Custom(), 0.5, scope="layer", include=["position"]).layers


def test_tied_weights_count_once_and_follow_their_embedding() -> None:
    tied = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False))
    tied[1].weight = tied[0].weight
    assert secateur.plan_weights(tied, 0.5).weights == 256
    language_model = nn.Sequential(nn.Embedding(16, 16), nn.Linear(16, 16), nn.Linear(16, 16, bias=False))
    language_model[2].weight = language_model[0].weight
    masks = secateur.plan_weights(language_model, 0.5)
    assert list(masks.layers) == ["1.weight"]
    assert "0.weight (tied to an embedding)" in str(masks)


def test_a_module_with_two_names_counts_once() -> None:
    layer = nn.Linear(16, 16)
    masks = secateur.plan_weights(nn.Sequential(layer, nn.ReLU(), layer), 0.5)
    assert list(masks.layers) == ["0.weight"]
    assert masks.weights == 256


def test_weights_that_share_storage_count_once() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = nn.Parameter(model[0].weight.data)
    masks = secateur.plan_weights(model, 0.5)
    assert masks.weights == 64
    secateur.apply(model, masks)
    assert int((model[1].weight == 0).sum()) == 32


def test_weights_that_cannot_be_ranked_are_left_alone() -> None:
    model = nn.ModuleDict({"small": nn.Linear(8, 8), "float8": nn.Linear(8, 8), "integer": nn.Linear(8, 8)})
    model["float8"].weight = nn.Parameter(model["float8"].weight.detach().to(torch.float8_e4m3fn), requires_grad=False)
    model["integer"].weight = nn.Parameter(torch.ones(8, 8, dtype=torch.int8), requires_grad=False)
    masks = secateur.plan_weights(model, 0.5)
    assert list(masks.layers) == ["small.weight"]
    assert "float8.weight (torch.float8_e4m3fn, which cannot be ranked)" in str(masks)


def test_frozen_weights_are_pruned_and_stay_frozen(convnet: ConvNet) -> None:
    convnet.requires_grad_(False)
    masks = secateur.plan_weights(convnet, 0.5)
    secateur.apply(convnet, masks)
    assert int((convnet.hidden.weight == 0).sum()) == masks.layers["hidden.weight"].zeros
    assert not convnet.hidden.weight.requires_grad


def test_a_model_loaded_from_meta_is_pruned(convnet: ConvNet) -> None:
    with torch.device("meta"):
        loaded = ConvNet()
    with pytest.raises(secateur.UsageError, match="meta device; load"):
        secateur.plan_weights(loaded, 0.5)
    loaded.load_state_dict(convnet.state_dict(), assign=True)
    assert secateur.plan_weights(loaded, 0.5) == secateur.plan_weights(convnet, 0.5)


def test_channels_last_weights_are_pruned_in_logical_order(convnet: ConvNet) -> None:
    expected = secateur.plan_weights(convnet, 0.5)
    assert secateur.plan_weights(convnet.to(memory_format=torch.channels_last), 0.5) == expected


def test_keep_and_per_layer_amounts(convnet: ConvNet) -> None:
    masks = secateur.plan_weights(convnet, 0.8, keep=["output"], per_layer={"conv": "25%"})
    assert list(masks.layers) == ["conv.weight", "hidden.weight"]
    assert masks.layers["conv.weight"].zeros == 72
    assert masks.layers["hidden.weight"].zeros == round(0.8 * 4096)


def test_the_first_matching_per_layer_pattern_counts(convnet: ConvNet) -> None:
    masks = secateur.plan_weights(convnet, per_layer={"hidden.weight": 0.5, "*": 0.25})
    assert masks.layers["hidden.weight"].zeros == 2048
    assert masks.layers["output.weight"].zeros == 32


def test_planning_changes_nothing(convnet: ConvNet) -> None:
    before = copy.deepcopy(convnet.state_dict())
    state = torch.get_rng_state()
    secateur.plan_weights(convnet, 0.5, score="random")
    assert torch.equal(state, torch.get_rng_state())
    for name, value in convnet.state_dict().items():
        assert torch.equal(value, before[name])


def test_an_emptied_layer_is_named_in_a_warning(convnet: ConvNet) -> None:
    nn.init.constant_(convnet.output.weight, 1e-6)
    with pytest.warns(secateur.SecateurWarning, match=r"output\.weight"):
        masks = secateur.plan_weights(convnet, 0.5)
    assert masks.emptied == ("output.weight",)


def test_scores_rank_differently(convnet: ConvNet) -> None:
    convnet(torch.randn(8, 4, 4, 4)).square().mean().backward()
    weight = convnet.hidden.weight
    taylor = secateur.plan_weights(convnet, 0.5, score="taylor", keep=["conv", "output"])
    importance = (weight * weight.grad).abs().detach().double().numpy().ravel()
    expected = np.zeros(4096, bool)
    expected[np.argsort(importance, kind="stable")[:2048]] = True
    np.testing.assert_array_equal(pruned_flags(taylor), expected)
    largest_first = secateur.plan_weights(
        convnet, 0.5, score=lambda name, w: 1 / (1 + w.abs()), keep=["conv", "output"]
    )
    assert (
        largest_first.layers["hidden.weight"]
        != secateur.plan_weights(convnet, 0.5, keep=["conv", "output"]).layers["hidden.weight"]
    )
    assert secateur.plan_weights(convnet, 0.5, score="random") == secateur.plan_weights(convnet, 0.5, score="random")


@given(st.floats(0, 0.6), st.floats(0.6, 0.95), st.sampled_from(["l1", "l2", "random"]), st.sampled_from([None, "4x1"]))
def test_a_later_plan_contains_the_earlier_one(first: float, second: float, score: str, pattern: str | None) -> None:
    torch.manual_seed(2)
    model = ConvNet()
    nn.init.zeros_(model.hidden.weight[:16])  # live zeros must not be traded for pruned ones
    earlier = secateur.plan_weights(model, first, score=score, pattern=pattern, keep=["output"])
    secateur.apply(model, earlier)
    later = secateur.plan_weights(model, second, score=score, pattern=pattern, keep=["output"], previous=earlier)
    assert not (pruned_flags(earlier) & ~pruned_flags(later)).any()
    units = later.weights // (4 if pattern else 1)
    assert later.zeros == round(second * units) * (4 if pattern else 1)


def test_earlier_masks_that_cannot_be_contained_are_refused(convnet: ConvNet) -> None:
    earlier = secateur.plan_weights(convnet, 0.5)
    with pytest.raises(secateur.UsageError, match=r"earlier mask of conv\.weight fits no weight"):
        secateur.plan_weights(convnet, 0.6, keep=["conv"], previous=earlier)
    with pytest.raises(secateur.UsageError, match="cuts through 4x1 blocks"):
        secateur.plan_weights(convnet, 0.6, pattern="4x1", previous=earlier)
    counting = secateur.plan_weights(convnet, 0.6, score=lambda name, w: (1000 * w.abs()).long(), previous=earlier)
    assert counting.zeros == round(0.6 * counting.weights)


def test_names_may_come_from_a_generator(convnet: ConvNet) -> None:
    assert "conv.weight" not in secateur.plan_weights(convnet, 0.5, keep=(name for name in ["conv"])).layers


def test_layers_with_one_input_or_output_are_pruned_too() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1))
    assert list(secateur.plan_weights(model, 0.5, scope="layer").layers) == ["0.weight", "1.weight"]


def test_taylor_scores_of_half_precision_do_not_underflow() -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False)).half()
    with torch.no_grad():
        model[0].weight.copy_(torch.rand(64, 64) * 1e-3)
    model[0].weight.grad = (torch.rand(64, 64) * 1e-5).half()
    exact = (model[0].weight.detach().double() * model[0].weight.grad.double()).flatten().numpy()
    expected = np.zeros(4096, bool)
    expected[np.argsort(exact, kind="stable")[:2048]] = True
    np.testing.assert_array_equal(pruned_flags(secateur.plan_weights(model, 0.5, score="taylor")), expected)


def test_an_uninitialised_model_is_explained() -> None:
    with pytest.raises(secateur.UsageError, match=r"0\.weight is not initialised yet; run the model once"):
        secateur.plan_weights(nn.Sequential(nn.LazyLinear(4)), 0.5)
    with pytest.raises(secateur.UsageError, match="The model is a dict"):
        secateur.plan_weights({"weight": torch.ones(2, 2)}, 0.5)


def test_wrapped_models_keep_plain_names(convnet: ConvNet) -> None:
    compiled = torch.compile(convnet, backend="eager")
    assert secateur.plan_weights(compiled, 0.5) == secateur.plan_weights(convnet, 0.5)


def test_masks_print_as_a_table(convnet: ConvNet) -> None:
    text = str(secateur.plan_weights(convnet, 0.5))
    assert "2,256 of 4,512 weights pruned (50.0%), scope global, score l1" in text
    assert "hidden.weight" in text
