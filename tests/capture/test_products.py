"""Zeros in the place of products: of the kernel's shape and layout, and only where nobody looks at them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur.base import UsageError
from secateur.capture import capture, definitions
from secateur.capture.products import zeros_for

aten = torch.ops.aten


def assert_like_the_kernel(op: Any, *args: Any) -> None:
    zeros, computed = zeros_for(op, args), op(*args)
    assert zeros is not None
    assert (zeros.shape, zeros.stride(), zeros.dtype) == (computed.shape, computed.stride(), computed.dtype)
    assert not zeros.any()


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize(("inputs", "outputs", "groups"), [(4, 6, 1), (4, 8, 4), (6, 4, 2), (1, 3, 1), (3, 1, 1)])
def test_zeros_have_the_form_of_a_convolution(axes: int, inputs: int, outputs: int, groups: int) -> None:
    for size, kernel, stride, padding, dilation in itertools.product((1, 7, 8), (1, 3), (1, 2), (0, 1), (1, 2)):
        if size + 2 * padding < dilation * (kernel - 1) + 1:
            continue
        x = torch.randn(2, inputs, *[size + i for i in range(axes)])
        weight = torch.randn(outputs, inputs // groups, *[kernel] * axes)
        given = [stride] * axes, [padding] * axes, [dilation] * axes
        for bias in (None, torch.randn(outputs)):
            assert_like_the_kernel(aten.convolution.default, x, weight, bias, *given, False, [0] * axes, groups)


def test_zeros_have_the_form_of_a_matrix_product() -> None:
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    assert_like_the_kernel(aten.mm.default, x, weight.t())
    assert_like_the_kernel(aten.mm.default, weight, x.t())
    assert_like_the_kernel(aten.addmm.default, torch.randn(5), x, weight.t())
    assert_like_the_kernel(aten.bmm.default, torch.randn(2, 3, 4), torch.randn(2, 5, 4).transpose(1, 2))


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, groups: int = 1, **other: Any
) -> tuple[Any, ...]:
    given = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "transposed": False, "output_padding": [0, 0]}
    return (aten.convolution.default, x, weight, bias, *(given | other).values(), groups)


def test_what_a_kernel_refuses_or_lays_out_otherwise_is_left_to_it() -> None:
    x, weight = torch.randn(1, 4, 5, 5), torch.randn(6, 4, 3, 3)
    for op, *args in (
        convolution(x[:, :3], weight),
        convolution(x, weight, torch.randn(5)),
        convolution(x, weight, groups=2),
        convolution(x, torch.randn(3, 2, 3, 3), groups=2),
        convolution(x[..., :2], weight),
        convolution(x, weight[..., 0]),
        convolution(x, weight, transposed=True),
        convolution(x.double(), weight),
        convolution(x.contiguous(memory_format=torch.channels_last), weight),
        convolution(x, weight.contiguous(memory_format=torch.channels_last)),
        convolution(x[:0], weight),
        convolution(x.to("meta"), weight.to("meta")),
        (aten.mm.default, torch.randn(3, 4), torch.randn(5, 4)),
        (aten.mm.default, torch.randn(3, 4).to_sparse(), torch.randn(4, 5)),
        (aten.addmm.default, torch.randn(4), torch.randn(3, 4), torch.randn(4, 5)),
        (aten.addmm.default, torch.randn(3, 5), torch.randn(3, 4), torch.randn(4, 5)),
        (aten.bmm.default, torch.randn(2, 3, 4), torch.randn(3, 4, 5)),
        (aten.bmm.default, torch.randn(2, 3, 4), torch.randn(2, 3, 5)),
        (aten.add.Tensor, torch.randn(3), torch.randn(3)),
    ):
        assert zeros_for(op, args) is None


class Routed(nn.Module):
    """One layer's output is handed on by a way that depends on its values."""

    def __init__(self, wants_true_values: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.first, self.on_values, self.on_zeros = (nn.Linear(4, 4) for _ in range(3))
        self.wants_true_values = wants_true_values

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.on_values(y) if self.wants_true_values(y) else self.on_zeros(y)


class LooksInside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.new_zeros(2) if x.any() else x.new_zeros(3)


def is_invertible(y: Tensor) -> bool:
    try:
        torch.linalg.inv(y)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize(
    "wants_true_values",
    [
        lambda y: bool(y.any()),
        lambda y: bool(y.flatten().view(-1).numpy().any()),
        lambda y: len(LooksInside.apply(y)) == 2,
        is_invertible,
    ],
    ids=["a question", "numpy", "an autograd function", "an error that is caught"],
)
def test_who_looks_at_a_product_gets_the_true_one(wants_true_values: Callable[[Tensor], bool]) -> None:
    model = Routed(wants_true_values)
    trace = capture(model, (torch.randn(4, 4),), {})
    last = [call for call in trace.calls[: trace.example_calls] if call.op == "linear"][-1]
    assert last["weight"].name == "on_values.weight"


def test_products_that_nobody_looks_at_are_not_computed() -> None:
    model = nn.Linear(4, 4)
    given: list[Tensor] = []
    model.register_forward_hook(lambda layer, args, out: given.append(out))
    capture(model, (torch.randn(2, 4),), {})
    (out,) = given
    assert not out.any()


def test_a_rule_is_compared_on_true_values(mistaken_rule: None) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Doubled())
    with pytest.raises(UsageError, match="computes something else"):
        capture(model, (torch.randn(2, 4),), {})


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.test_products.doubled(x)  # type: ignore[no-any-return]


@torch.library.custom_op("test_products::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return 2 * x


@pytest.fixture
def mistaken_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(definitions._DEFINITIONS, "test_products::doubled", lambda x: 3 * x)
