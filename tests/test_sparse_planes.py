"""Max pooling and depthwise convolutions in kernels of our own, against torch's, with every instruction set."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.errors import UsageError
from secateur.sparse.depthwise import depthwise_conv2d
from secateur.sparse.native import supported_instruction_sets, using_instruction_set, why_unavailable
from secateur.sparse.pooling import MaxPool2d
from tests.sparse_layers import ACTIVATIONS, along_an_axis

if why_unavailable():
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
    expected = F.max_pool2d(x, pool.kernel, pool.stride, pool.padding)
    torch.testing.assert_close(output, expected, rtol=0, atol=0, equal_nan=True)


def test_pooling_takes_inputs_that_lie_in_any_way_and_single_images() -> None:
    pool, x = MaxPool2d((3, 2), (2, 1), (1, 0)), torch.randn(2, 5, 9, 11)
    for each in (x.to(memory_format=torch.channels_last), x.mT, x[:, ::2, 1:], x[0]):
        assert pool(each).equal(F.max_pool2d(each, pool.kernel, pool.stride, pool.padding))


def test_other_types_than_float32_are_refused() -> None:
    with pytest.raises(UsageError, match="float32 on the CPU"):
        MaxPool2d((2, 2), (2, 2), (0, 0))(torch.ones(1, 1, 4, 4, dtype=torch.float64))


def test_an_image_that_is_too_small_is_refused() -> None:
    with pytest.raises(UsageError, match="too small for a window"):
        MaxPool2d((3, 3), (1, 1), (0, 0))(torch.randn(1, 1, 2, 5))


@st.composite
def depthwises(draw: Any) -> tuple[nn.Conv2d, str, Tensor, bool]:
    torch.manual_seed(draw(st.integers(0, 2**32)))
    axes = [draw(along_an_axis()) for _ in range(2)]
    kernel, stride, padding, dilation, size = (tuple(column) for column in zip(*axes, strict=True))
    channels, outputs = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    conv = nn.Conv2d(
        channels,
        channels * outputs,
        kernel,
        stride,
        padding,
        dilation,
        groups=channels,
        bias=draw(st.booleans()),
    )
    x = torch.randn(draw(st.integers(0, 3)), channels, *size)
    return conv, draw(st.sampled_from(list(ACTIVATIONS))), x, draw(st.booleans())


@every_set
@given(case=depthwises())
def test_a_depthwise_convolution_computes_what_torch_does_in_float64(
    instructions: str, case: tuple[nn.Conv2d, str, Tensor, bool]
) -> None:
    conv, activation, x, add = case
    weight, bias = conv.weight.detach().double(), None if conv.bias is None else conv.bias.detach().double()
    window = conv.stride, conv.padding, conv.dilation, conv.groups
    expected = F.conv2d(x.double(), weight, bias, *window)
    bound = F.conv2d(x.double().abs(), weight.abs(), None if bias is None else bias.abs(), *window)
    residual = torch.randn(expected.shape) if add else torch.zeros(expected.shape)
    expected, bound = ACTIVATIONS[activation](expected + residual.double()), bound + residual.double().abs()
    with using_instruction_set(instructions):
        output = depthwise_conv2d(
            conv,
            x,
            residual if add else None,
            stride=conv.stride,
            padding=conv.padding,
            dilation=conv.dilation,
            groups=conv.groups,
            activation=activation,
        )
    assert output.shape == expected.shape
    assert ((output.double() - expected).abs() <= 1e-5 * bound).all()


@every_set
@pytest.mark.parametrize("kernel", [3, 5])
def test_images_of_every_width(instructions: str, kernel: int) -> None:
    """Rows shorter than a vector, and those that vectors do not divide."""
    for width in range(1, 140):
        conv, x = nn.Conv2d(2, 2, kernel, padding=kernel // 2, groups=2, bias=False), torch.randn(1, 2, 4, width)
        window = {"stride": (1, 1), "padding": (kernel // 2, kernel // 2), "dilation": (1, 1), "groups": 2}
        with using_instruction_set(instructions):
            output = depthwise_conv2d(conv, x, None, activation="none", **window)
        expected = F.conv2d(x.double(), conv.weight.detach().double(), **window)
        torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5)
