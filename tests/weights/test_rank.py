"""Exact selection against a full sort, over every float type, ties and chunk borders."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from secateur.weights import rank


def reference(arrays: list[np.ndarray], count: int) -> np.ndarray:
    """The `count` smallest magnitudes, the first of equals first: a stable sort of everything at once."""
    magnitude = np.abs(np.concatenate([array.ravel() for array in arrays]).astype(np.float64))
    chosen = np.zeros(len(magnitude), bool)
    chosen[np.argsort(magnitude, kind="stable")[:count]] = True
    return chosen


def selected(tensors: list[torch.Tensor], count: int, wide: bool) -> np.ndarray:
    cutoff = rank.find_cutoff(lambda: tensors, count, wide=wide)
    parts = []
    for tensor in tensors:
        part, cutoff = rank.select(tensor.reshape(-1), cutoff, wide=wide)
        parts.append(part.numpy())
    assert cutoff.ties == 0, "every promised tie was found"
    return np.concatenate(parts)


finite32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
arrays32 = st.lists(hnp.arrays(np.float32, st.integers(1, 40), elements=finite32), min_size=1, max_size=4)
few_values = st.lists(
    hnp.arrays(np.float32, st.integers(1, 40), elements=st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.0])),
    min_size=1,
    max_size=4,
)


@given(st.one_of(arrays32, few_values), st.floats(0, 1))
def test_float32_equals_a_stable_sort(arrays: list[np.ndarray], share: float) -> None:
    count = round(share * sum(len(array) for array in arrays))
    tensors = [torch.from_numpy(array) for array in arrays]
    np.testing.assert_array_equal(selected(tensors, count, wide=False), reference(arrays, count))


@given(
    st.lists(hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e300, 1e300)), min_size=1, max_size=3),
    st.floats(0, 1),
)
def test_float64_equals_a_stable_sort(arrays: list[np.ndarray], share: float) -> None:
    count = round(share * sum(len(array) for array in arrays))
    tensors = [torch.from_numpy(array) for array in arrays]
    np.testing.assert_array_equal(selected(tensors, count, wide=True), reference(arrays, count))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_ranked_without_rounding(dtype: torch.dtype) -> None:
    tensors = [torch.randn(500).to(dtype), torch.randn(300)]
    arrays = [tensor.float().numpy() for tensor in tensors]
    for count in (0, 1, 399, 799, 800):
        np.testing.assert_array_equal(selected(tensors, count, wide=False), reference(arrays, count))


def test_chunk_borders_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.randint(-5, 6, (n,)).float() for n in (7, 64, 100)]
    before = rank.find_cutoff(lambda: tensors, 80)
    monkeypatch.setattr(rank, "CHUNK", 8)
    assert rank.find_cutoff(lambda: tensors, 80) == before


def test_non_contiguous_scores_are_ranked_in_logical_order() -> None:
    tensor = torch.randn(2, 8, 3, 3).contiguous(memory_format=torch.channels_last)
    np.testing.assert_array_equal(selected([tensor], 50, wide=False), reference([tensor.numpy()], 50))


def test_asking_for_more_than_there_is_is_refused() -> None:
    with pytest.raises(ValueError, match="only 3"):
        rank.find_cutoff(lambda: [torch.ones(3)], 4)
