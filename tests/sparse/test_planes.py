"""Max pooling and depthwise convolutions in kernels of our own, against torch's, with every instruction set."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from secateur.base.errors import UsageError
from secateur.sparse.dense import DenseConv2d
from secateur.sparse.max_pooling import MaxPool2d
from secateur.sparse.native import why_missing
from secateur.sparse.window import Window
from tests.support.instruction_sets import supported_instruction_sets, using_instruction_set
from tests.support.sparse_layers import ACTIVATIONS, depthwise_layers, images_for

if why_missing():
    pytest.skip("the kernels were not compiled", allow_module_level=True)

every_set = pytest.mark.parametrize("instructions", supported_instruction_sets())


@st.composite
def poolings(draw: Any) -> tuple[MaxPool2d, Tensor]:
    torch.manual_seed(draw(st.integers(0, 2**32)))
    kernel = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    stride = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    padding = tuple(draw(st.integers(0, size // 2)) for size in kernel)
    size = [draw(st.integers(max(1, kernel[i] - 2 * padding[i]), 30)) for i in (0, 1)]
    x = torch.randn(draw(st.integers(0, 2)), draw(st.integers(1, 3)), *size)
    odd = draw(st.sampled_from([0.0, math.nan, math.inf, -math.inf]))
    return MaxPool2d(kernel, stride, padding), torch.where(torch.rand_like(x) < 0.1, odd, x)


@every_set
@given(case=poolings())
def test_the_largest_are_the_same(instructions: str, case: tuple[MaxPool2d, Tensor]) -> None:
    pool, x = case
    with using_instruction_set(instructions):
        output = pool(x)
    expected = F.max_pool2d(x, pool.kernel, pool.window.stride, pool.window.padding)
    torch.testing.assert_close(output, expected, rtol=0, atol=0, equal_nan=True)


def test_pooling_takes_inputs_that_lie_in_any_way_and_single_images() -> None:
    pool, x = MaxPool2d((3, 2), (2, 1), (1, 0)), torch.randn(2, 5, 9, 11)
    for each in (x.to(memory_format=torch.channels_last), x.mT, x[:, ::2, 1:], x[0]):
        assert pool(each).equal(F.max_pool2d(each, pool.kernel, pool.window.stride, pool.window.padding))


def test_other_types_than_float32_are_refused() -> None:
    with pytest.raises(UsageError, match="float32 on the CPU"):
        MaxPool2d((2, 2), (2, 2), (0, 0))(torch.ones(1, 1, 4, 4, dtype=torch.float64))


def test_an_image_that_is_too_small_is_refused() -> None:
    with pytest.raises(UsageError, match="An input of 2 × 5 is too small for a kernel of 3 × 3"):
        MaxPool2d((3, 3), (1, 1), (0, 0))(torch.randn(1, 1, 2, 5))


@st.composite
def depthwises(draw: Any) -> tuple[DenseConv2d, Tensor, bool]:
    torch.manual_seed(draw(st.integers(0, 2**32)))
    conv = draw(depthwise_layers())
    x = torch.randn(draw(st.integers(0, 3)), conv.window.groups, *draw(images_for(conv)))
    return conv, x, draw(st.booleans())


@every_set
@given(case=depthwises())
def test_a_depthwise_convolution_computes_what_torch_does_in_float64(
    instructions: str, case: tuple[DenseConv2d, Tensor, bool]
) -> None:
    conv, x, add = case
    weight, bias = conv.weight.double(), None if conv.bias is None else conv.bias.double()
    expected = F.conv2d(x.double(), weight, bias, **asdict(conv.window))
    bound = F.conv2d(x.double().abs(), weight.abs(), None if bias is None else bias.abs(), **asdict(conv.window))
    residual = torch.randn(expected.shape) if add else torch.zeros(expected.shape)
    expected, bound = ACTIVATIONS[conv.activation](expected + residual.double()), bound + residual.double().abs()
    with using_instruction_set(instructions):
        output = conv(x, residual if add else None)
    assert output.shape == expected.shape
    assert ((output.double() - expected).abs() <= 1e-5 * bound).all()


@every_set
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_images_of_every_width(instructions: str, kernel: int, stride: int) -> None:
    """Rows shorter than a vector, and those that vectors do not divide."""
    window = Window((stride, stride), (kernel // 2, kernel // 2), (1, 1), groups=2)
    for width in range(1, 140):
        weight, x = torch.randn(2, 1, kernel, kernel), torch.randn(1, 2, 5, width)
        with using_instruction_set(instructions):
            output = DenseConv2d("", weight, None, window)(x)
        expected = F.conv2d(x.double(), weight.double(), **asdict(window))
        torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5)


@every_set
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_pixel_that_is_not_finite_stays_within_its_windows(instructions: str, stride: int, value: float) -> None:
    """Vectors read across the ends of rows; nothing of that may reach the result."""
    window = Window((stride, stride), (1, 1), (1, 1), groups=3)
    conv = DenseConv2d("", torch.ones(3, 1, 3, 3), None, window)
    for place in ((1, 0, 0), (1, 5, 39), (1, 3, 0), (1, 2, 39), (0, 5, 39), (2, 0, 0), (1, 3, 16)):
        x = torch.zeros(1, 3, 6, 40)
        x[0][place] = value
        with using_instruction_set(instructions):
            output = conv(x)
        reached = F.conv2d((x != 0).double(), torch.ones(3, 1, 3, 3).double(), **asdict(window)) != 0
        assert output.isfinite().logical_not().equal(reached)
