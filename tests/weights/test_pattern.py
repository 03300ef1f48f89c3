"""N:M and block patterns, checked by counting in plain loops, on linear, convolution and transposed layers."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import secateur
from secateur.weights.pattern import Block, NofM, parse_pattern

LAYERS = {
    "linear": (lambda: nn.Linear(16, 8), 1),
    "conv": (lambda: nn.Conv2d(8, 4, 3), 1),
    "grouped conv": (lambda: nn.Conv2d(16, 8, 3, groups=2), 1),
    "transposed conv": (lambda: nn.ConvTranspose2d(8, 4, 3), 0),
}


def neighbours(weight: np.ndarray, input_dim: int, m: int) -> np.ndarray:
    """Every group of m neighbours along the input, gathered one by one."""
    moved = np.moveaxis(weight, input_dim, -1)
    groups = []
    for index in itertools.product(*(range(size) for size in moved.shape[:-1])):
        row = moved[index]
        groups += [row[i : i + m] for i in range(0, len(row), m)]
    return np.array(groups)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 4), (1, 2), (3, 8)])
def test_n_of_m_keeps_the_largest_of_every_group(kind: str, n: int, m: int) -> None:
    make, input_dim = LAYERS[kind]
    model = nn.Sequential(make())
    dense = model[0].weight.detach().clone().numpy()
    masks = secateur.plan_weights(model, pattern=f"{n}:{m}")
    secateur.apply(model, masks)
    secateur.check_pattern(model, masks)
    before = neighbours(dense, input_dim, m)
    after = neighbours(model[0].weight.detach().numpy(), input_dim, m)
    assert ((after != 0).sum(1) == n).all()
    kept_magnitudes = np.sort(np.abs(before), 1)[:, m - n :]
    np.testing.assert_array_equal(np.sort(np.abs(after), 1)[:, m - n :], kept_magnitudes)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(("outputs", "inputs"), [(4, 1), (1, 4), (2, 2)])
def test_blocks_go_as_a_whole_and_the_weakest_go_first(kind: str, outputs: int, inputs: int) -> None:
    make, input_dim = LAYERS[kind]
    model = nn.Sequential(make())
    dense = model[0].weight.detach().clone()
    masks = secateur.plan_weights(model, 0.5, pattern=f"{outputs}x{inputs}")
    secateur.apply(model, masks)
    by_output = dense if input_dim == 1 else dense.transpose(0, 1)
    after = model[0].weight.detach() if input_dim == 1 else model[0].weight.detach().transpose(0, 1)
    removed, kept = [], []
    for row in range(0, by_output.shape[0], outputs):
        for column in range(0, by_output.shape[1], inputs):
            before_block = (
                by_output[row : row + outputs, column : column + inputs].flatten(2)
                if dense.ndim > 2
                else (by_output[row : row + outputs, column : column + inputs, None])
            )
            after_block = after[row : row + outputs, column : column + inputs].reshape(outputs, inputs, -1)
            for position in range(before_block.shape[2]):
                strength = float(before_block[:, :, position].abs().sum())
                zeros = int((after_block[:, :, position] == 0).sum())
                assert zeros in (0, outputs * inputs)
                (removed if zeros else kept).append(strength)
    assert len(removed) == round(0.5 * (len(removed) + len(kept)))
    assert max(removed) <= min(kept) + 1e-6


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(n + 1, 8))), st.integers(1, 5))
def test_ties_in_a_group_go_in_order(nm: tuple[int, int], rows: int) -> None:
    n, m = nm
    removed = NofM(n, m).select(torch.ones(rows, 2 * m), 1)
    assert removed.tolist() == [([True] * (m - n) + [False] * n) * 2] * rows


def test_the_chunks_of_a_large_layer_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.rand(64, 64)
    whole = NofM(2, 4).select(scores, 1)
    monkeypatch.setattr("secateur.weights.pattern.CHUNK", 100)
    assert torch.equal(NofM(2, 4).select(scores, 1), whole)


def test_patterns_are_parsed() -> None:
    assert parse_pattern("2:4") == NofM(2, 4)
    assert parse_pattern("4x1") == parse_pattern("4×1") == Block(4, 1)


@pytest.mark.parametrize("text", ["4:2", "0:4", "2:2", "0x1", "2-4", "", "2:4:8", "a:b", "99999:100000"])
def test_other_patterns_are_refused(text: str) -> None:
    with pytest.raises(secateur.UsageError, match="such as"):
        parse_pattern(text)


def test_a_layer_that_the_pattern_does_not_divide_stays_dense_and_is_named() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 10, 1))
    masks = secateur.plan_weights(model, pattern="2:4")
    assert {name: layer.zeros for name, layer in masks.layers.items()} == {
        "0.weight": 0,
        "1.weight": 8 * 8 * 9 // 2,
        "2.weight": 0,
        "3.weight": 8 * 10 // 2,
    }
    assert [item.name for item in masks.misfits] == ["0.weight", "2.weight"]
    assert "left alone: 0.weight (2:4 needs a multiple of 4 inputs, and it has 3)" in str(masks)
    assert masks.sparsity == (288 + 40) / (8 * 3 * 9 + 576 + 72 + 80), "the dense layers count as well"
    secateur.check_pattern(secateur.apply(model, masks), masks)
    assert model[0].weight.count_nonzero() == 8 * 3 * 9
    kept = secateur.plan_weights(model, pattern="2:4", keep=["0", "2"])
    assert kept.sparsity == 0.5
    assert not kept.misfits, "what the user keeps is no surprise"


def test_blocks_rank_only_the_layers_that_they_divide() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 10))
    earlier = secateur.plan_weights(model, 0.25, pattern="4x1")
    masks = secateur.plan_weights(model, 0.5, pattern="4x1", previous=earlier)
    assert {name: layer.zeros for name, layer in masks.layers.items()} == {"0.weight": 32, "1.weight": 0}
    assert "1.weight (4x1 needs a multiple of 4 outputs, and it has 10)" in str(masks)
    assert bool((masks.layers["0.weight"].pruned() | ~earlier.layers["0.weight"].pruned()).all())
    assert "4x3 needs a multiple of 3 inputs, and it has 8" in str(
        secateur.plan_weights(nn.Sequential(*model, nn.Linear(9, 4)), 0.5, pattern="4x3")
    )
    with pytest.raises(secateur.UsageError, match=r"earlier mask of 1\.weight fits no weight in this ranking"):
        secateur.plan_weights(model, 0.9, pattern="4x1", previous=secateur.plan_weights(model, 0.5, keep=["0"]))


def test_a_pattern_that_fits_nothing_says_so() -> None:
    with pytest.raises(secateur.UsageError, match=r"^The pattern 2:4 fits no layer of the model \(0\.weight: 2:4"):
        secateur.plan_weights(nn.Sequential(nn.Conv2d(3, 8, 3)), pattern="2:4")


def test_a_layer_that_is_asked_for_has_to_fit() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 10))
    with pytest.raises(secateur.UsageError, match=r"^per_layer names 1\.weight, which stays dense: 4x1 needs .* 10; "):
        secateur.plan_weights(model, 0.5, pattern="4x1", per_layer={"1": 0.25})
    with pytest.raises(secateur.UsageError, match=r"^include names 1\.weight, which stays dense: .*out of include\.$"):
        secateur.plan_weights(model, 0.5, pattern="4x1", include=["1.weight"])
    of_both = secateur.plan_weights(model, pattern="4x1", per_layer={"*": 0.25})
    assert {name: layer.zeros for name, layer in of_both.layers.items()} == {"0.weight": 16, "1.weight": 0}


def test_n_of_m_fixes_the_amount() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    assert secateur.plan_weights(model, 0.5, pattern="2:4") == secateur.plan_weights(model, pattern="2:4")
    with pytest.raises(secateur.UsageError, match=r"exactly 0\.5"):
        secateur.plan_weights(model, 0.9, pattern="2:4")
    with pytest.raises(secateur.UsageError, match="per_layer"):
        secateur.plan_weights(model, pattern="2:4", per_layer={"0": 0.5})


def test_a_layer_of_unknown_orientation_is_left_alone() -> None:
    class InputsFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 12))

    model = nn.Sequential(InputsFirst(), nn.Linear(8, 8))
    masks = secateur.plan_weights(model, pattern="2:4")
    assert {name: layer.zeros for name, layer in masks.layers.items()} == {"0.weight": 0, "1.weight": 32}
    assert "0.weight (which of its dimensions is the input is unknown)" in str(masks)


def test_a_bias_that_is_asked_for_cannot_follow_a_pattern() -> None:
    with pytest.raises(secateur.UsageError, match=r"names 0\.bias, .*: it has no input dimension"):
        secateur.plan_weights(nn.Sequential(nn.Linear(8, 8)), pattern="2:4", include=["0.bias"])


def test_a_broken_pattern_is_noticed() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    masks = secateur.plan_weights(model, pattern="2:4")
    with pytest.raises(secateur.UsageError, match=r"0\.weight breaks 2:4 in 16 groups"):
        secateur.check_pattern(model, masks)
    with pytest.raises(secateur.UsageError, match=r"name 0\.weight, which this model lacks"):
        secateur.check_pattern(nn.ModuleDict({"a": nn.Linear(8, 8)}), masks)
    with pytest.raises(secateur.UsageError, match="N:M"):
        secateur.check_pattern(model, secateur.plan_weights(model, 0.5))


def test_conversion_for_tensor_cores_is_checked_up_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(128, 64), nn.Linear(64, 10)).half()
    masks = secateur.plan_weights(model, pattern="2:4")
    secateur.apply(model, masks)
    with pytest.raises(secateur.UsageError, match="CUDA only"):
        secateur.to_semi_structured(model, masks)
    with pytest.raises(secateur.UsageError, match=r"model\.half\(\)"):
        secateur.to_semi_structured(model.float(), masks)
    alone = nn.Linear(128, 64).half()
    masks_alone = secateur.plan_weights(alone, pattern="2:4")
    with pytest.raises(secateur.UsageError, match="CUDA only"):
        secateur.to_semi_structured(secateur.apply(alone, masks_alone), masks_alone)
    one_of_four = secateur.plan_weights(model, pattern="1:4")
    with pytest.raises(secateur.UsageError, match="take 2:4, not 1:4"):
        secateur.to_semi_structured(model, one_of_four)
