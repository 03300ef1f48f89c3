"""Sparse layers where the kernels were not compiled: with numba, and without it."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from secateur.base.errors import UsageError
from secateur.sparse import backend, native
from secateur.sparse.layers import SparseConv2d, SparseLinear
from tests.support.sparse_layers import ACTIVATIONS, assert_close, convolutions, dense, linears, sparse_weight

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba")
few = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def _nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SECATEUR_KERNELS", "not there")
    native._library.cache_clear()
    yield
    monkeypatch.undo()
    native._library.cache_clear()


@needs_numba
def test_numba_is_what_runs() -> None:
    assert backend.kernels().__name__ == "secateur.sparse.numba_kernels"
    assert backend.why_unavailable() is None


@needs_numba
@few
@given(case=linears())
def test_a_linear_layer_computes_what_a_dense_one_does(
    case: tuple[SparseLinear, Tensor, Tensor, Tensor | None],
) -> None:
    assert_close(*case)


@needs_numba
@few
@given(case=convolutions())
def test_a_convolution_computes_what_a_dense_one_does(
    case: tuple[SparseConv2d, Tensor, Tensor, Tensor | None],
) -> None:
    assert_close(*case)


@needs_numba
@pytest.mark.parametrize("one_example", [False, True])
def test_more_columns_than_an_index_can_count(one_example: bool) -> None:
    weight = sparse_weight((4, 65536 + 77), 0.01)
    layer = SparseLinear.pack(weight, None, one_example=one_example)
    assert_close(layer, weight, torch.randn(3, weight.shape[1]))


@needs_numba
@pytest.mark.parametrize("block", [1, 4])
def test_what_is_not_finite_spreads_to_where_a_weight_reads_it_and_no_further(block: int) -> None:
    weight = sparse_weight((8, 30), 0.3, block)
    weight[:4, 12], weight[4:, 12] = 0, 1
    for value in (math.nan, math.inf, -math.inf):
        x = torch.randn(5, 30)
        x[0, 12] = value
        sums = dense(SparseLinear.pack(weight, None, block=block), weight, x).float()
        for activation, activate in ACTIVATIONS.items():
            output = SparseLinear.pack(weight, None, block=block, activation=activation)(x)
            assert output[:, :4].isfinite().all()
            # In float32, as torch's own activations run here: with AVX-512, its GELU of infinity is NaN.
            torch.testing.assert_close(output[:, 4:], activate(sums)[:, 4:], equal_nan=True)


def test_without_numba_a_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "find_spec", lambda _: None)
    assert backend.why_unavailable() == native.why_missing()
    layer = SparseLinear.pack(torch.ones(2, 2), None)
    with pytest.raises(UsageError, match=r"^Sparse layers cannot run here: the kernels were not compiled; .*\.$"):
        layer(torch.ones(1, 2))
