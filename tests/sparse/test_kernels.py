"""Sparse layers against dense ones in float64, with every instruction set that this processor has."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.nn import functional as F

from secateur.sparse.layers import SparseConv2d, SparseLinear
from secateur.sparse.native import why_missing
from secateur.sparse.window import Window
from tests.support.instruction_sets import supported_instruction_sets, using_instruction_set
from tests.support.sparse_layers import ACTIVATIONS, assert_close, convolutions, dense, linears, sparse_weight

if why_missing():
    pytest.skip("the kernels were not compiled", allow_module_level=True)

every_set = pytest.mark.parametrize("instructions", supported_instruction_sets())
EXAMPLES = settings().max_examples
SAME = Window((1, 1), (1, 1), (1, 1), groups=1)


@every_set
@given(case=linears())
def test_a_linear_layer_computes_what_a_dense_one_does(
    instructions: str, case: tuple[SparseLinear, Tensor, Tensor, Tensor | None]
) -> None:
    with using_instruction_set(instructions):
        assert_close(*case)


@every_set
@settings(max_examples=3 * EXAMPLES)
@given(case=convolutions())
def test_a_convolution_computes_what_a_dense_one_does(
    instructions: str, case: tuple[SparseConv2d, Tensor, Tensor, Tensor | None]
) -> None:
    with using_instruction_set(instructions):
        assert_close(*case)


@every_set
@pytest.mark.parametrize("block", [1, 4])
@pytest.mark.parametrize("one_example", [False, True])
@pytest.mark.parametrize("examples", [1, 3, 70])
def test_more_columns_than_an_index_can_count(instructions: str, block: int, one_example: bool, examples: int) -> None:
    weight = sparse_weight((12, 2 * 65536 + 77), 0.01, block)
    weight[:, -1] = 1  # the last column, behind the last whole panel
    layer = SparseLinear.pack(weight, None, block=block, one_example=one_example)
    with using_instruction_set(instructions):
        assert_close(layer, weight, torch.randn(examples, weight.shape[1]))


@every_set
@pytest.mark.parametrize("block", [1, 4])
@pytest.mark.parametrize("examples", [1, 2, 65])
def test_one_weight_alone(instructions: str, block: int, examples: int) -> None:
    x = torch.randn(examples, 250)
    with using_instruction_set(instructions):
        for row, column in ((0, 0), (7, 249), (3, 113)):
            weight = torch.zeros(8, 250)
            weight[row, column] = 2
            expected = torch.zeros(examples, 8)
            expected[:, row] = 2 * x[:, column]
            assert SparseLinear.pack(weight, None, block=block)(x).equal(expected)


@every_set
@pytest.mark.parametrize("block", [1, 4])
def test_a_layer_without_weights_gives_its_bias(instructions: str, block: int) -> None:
    bias = torch.randn(8)
    linear = SparseLinear.pack(torch.zeros(8, 30), bias, block=block)
    conv = SparseConv2d.pack(torch.zeros(8, 3, 3, 3), bias, SAME, block=block)
    with using_instruction_set(instructions):
        assert linear(torch.randn(11, 30)).equal(bias.expand(11, 8))
        assert conv(torch.randn(2, 3, 5, 7)).equal(bias[:, None, None].expand(2, 8, 5, 7))


@every_set
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (7, 7), (1, 5), (5, 1)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("images", [1, 3])
def test_kernels_larger_than_the_image_and_tiles_across_images(
    instructions: str, kernel: tuple[int, int], stride: tuple[int, int], images: int
) -> None:
    weight = sparse_weight((8, 70, *kernel), 0.2)
    padding = kernel[0] // 2, kernel[1] // 2
    layer = SparseConv2d.pack(weight, None, Window(stride, padding, (1, 1), groups=1), activation="relu")
    with using_instruction_set(instructions):
        for size in ((2, 3), (9, 13)):
            assert_close(layer, weight, torch.randn(images, 70, *size))


@every_set
def test_a_single_image_and_a_single_example_come_without_a_batch(instructions: str) -> None:
    weight = sparse_weight((8, 6, 3, 3), 0.3)
    layer = SparseConv2d.pack(weight, torch.randn(8), SAME)
    x, residual = torch.randn(6, 9, 9), torch.randn(8, 9, 9)
    flat = sparse_weight((8, 6), 0.5)
    with using_instruction_set(instructions):
        assert_close(layer, weight, x, residual)
        assert_close(SparseLinear.pack(flat, None), flat, torch.randn(6))
        assert_close(SparseLinear.pack(flat, None), flat, torch.randn(2, 3, 5, 6))


@every_set
def test_inputs_may_lie_in_any_way(instructions: str) -> None:
    weight = sparse_weight((8, 6, 3, 3), 0.3)
    conv = SparseConv2d.pack(weight, None, SAME)
    flat = sparse_weight((8, 30), 0.3)
    linear = SparseLinear.pack(flat, None)
    image, examples = torch.randn(4, 6, 10, 12), torch.randn(30, 20)
    residual = torch.randn(4, 8, 10, 12).to(memory_format=torch.channels_last)
    with using_instruction_set(instructions):
        for x in (
            image.to(memory_format=torch.channels_last),
            image.mT,
            image[::2, :, ::2, 3:],
            image[:1].expand(4, -1, -1, -1),
        ):
            assert_close(conv, weight, x)
        assert_close(conv, weight, image, residual)
        assert_close(linear, flat, examples.T)
        assert_close(linear, flat, examples[:, 5].expand(7, 30))
        assert_close(linear, flat, torch.randn(5, 61)[:, ::2][:, :30])


@every_set
@pytest.mark.parametrize("block", [1, 4])
@pytest.mark.parametrize("examples", [1, 5, 64])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_spreads_to_where_a_weight_reads_it_and_no_further(
    instructions: str, block: int, examples: int, value: float
) -> None:
    weight = sparse_weight((16, 300), 0.3, block)
    weight[:8, 120] = 0
    weight[8:, 120] = torch.tensor([1.0, -2.0]).repeat(4)
    x = torch.randn(examples, 300)
    x[0, 120] = value
    with using_instruction_set(instructions):
        for activation in ACTIVATIONS:
            layer = SparseLinear.pack(weight, torch.randn(16), block=block, activation=activation)
            output = layer(x)
            assert output[0, :8].isfinite().all()
            assert output[1:].isfinite().all()
            _assert_alike(output[0, 8:], dense(layer, weight, x)[0, 8:])


@every_set
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_pixel_that_is_not_finite_spreads_as_far_as_the_kernel(instructions: str, value: float) -> None:
    weight = torch.ones(3, 2, 3, 3)
    weight[1, 1] = 0
    x = torch.randn(2, 2, 8, 9)
    x[0, 1, 4, 4] = value
    layer = SparseConv2d.pack(weight, None, SAME)
    with using_instruction_set(instructions):
        output = layer(x)
    reached = torch.zeros(2, 3, 8, 9, dtype=torch.bool)
    reached[0, [0, 2], 3:6, 3:6] = True
    assert output.isfinite().logical_not().equal(reached)
    _assert_alike(output[reached], dense(layer, weight, x)[reached])


@every_set
@pytest.mark.parametrize("block", [1, 4])
@pytest.mark.parametrize("examples", [1, 9])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_biases_and_residuals_that_are_not_finite(
    instructions: str, block: int, examples: int, value: float
) -> None:
    weight, bias, residual = sparse_weight((12, 40), 0.4, block), torch.randn(12), torch.randn(examples, 12)
    weight[2, 7] = bias[5] = residual[0, 9] = value
    x = torch.randn(examples, 40)
    with using_instruction_set(instructions):
        for activation in ACTIVATIONS:
            layer = SparseLinear.pack(weight, bias, block=block, activation=activation)
            _assert_alike(layer(x, residual), dense(layer, weight, x, residual))


@every_set
def test_a_gelu_is_exact_to_the_last_digits_everywhere(instructions: str) -> None:
    x = torch.cat([torch.linspace(-8, 8, 100_001), torch.tensor([-1e30, -1e-30, -0.0, 0.0, 1e-30, 1e30])])[:, None]
    with using_instruction_set(instructions):
        output = SparseLinear.pack(torch.ones(1, 1), None, activation="gelu")(x)
    torch.testing.assert_close(output.double(), F.gelu(x.double()), rtol=6e-8, atol=1e-7)


@every_set
@pytest.mark.parametrize("examples", [1, 20])
def test_the_smallest_numbers_and_minus_zero_count(instructions: str, examples: int) -> None:
    tiny = 1e-40
    weight = torch.tensor([[tiny, 0, -0.0], [-tiny, tiny, 0], [0, 0, 1]])
    x = torch.tensor([[1.0, 3.0, -0.0]]).expand(examples, 3)
    with using_instruction_set(instructions):
        output = SparseLinear.pack(weight, None)(x)
    assert output.equal(F.linear(x.double(), weight.double()).float())
    assert (output[:, 0] != 0).all()


@every_set
@given(case=linears() | convolutions())
@settings(max_examples=EXAMPLES // 4)
def test_the_number_of_threads_changes_no_bit(instructions: str, case: tuple[Any, Tensor, Tensor, Any]) -> None:
    layer, _, x, residual = case
    with using_instruction_set(instructions):
        outputs = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            outputs.append(layer(x, residual).view(torch.int32))
    torch.set_num_threads(1)
    assert outputs[0].equal(outputs[1])
    assert outputs[0].equal(outputs[2])


def _assert_alike(output: Tensor, expected: Tensor) -> None:
    """NaN where it should be, infinities of the right sign, and the rest nearly the same."""
    torch.testing.assert_close(output, expected.float(), rtol=1e-4, atol=1e-4, equal_nan=True)
