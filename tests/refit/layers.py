"""Layers whose output is linear in their parameters, in whichever way torch computes it, and what they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn


class Functional(nn.Module):
    """A weight, perhaps a bias, and what is done with them."""

    def __init__(self, shape: tuple[int, ...], bias: int, run: Callable[[Tensor, Tensor, Any], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape))
        self.bias = nn.Parameter(torch.randn(bias)) if bias else None
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, self.weight, self.bias)


@dataclass(frozen=True)
class Case:
    layer: nn.Module
    shape: tuple[int, ...]
    """Of what one example reads."""
    units: tuple[int, ...]
    """The axes of the output that tell apart its outputs; all others are positions."""

    def inputs(self, examples: int) -> Tensor:
        """What one reads is known in part from the others: only then can they stand in for it."""
        noise = torch.randn(examples, *self.shape, dtype=torch.float64)
        return noise + 2 * torch.randn(examples, *(1 for _ in self.shape), dtype=torch.float64)


def _product(*args: Any) -> nn.Module:
    return Functional(*args).double()


PRODUCTS: dict[str, Callable[[], Case]] = {
    "linear": lambda: Case(nn.Linear(5, 4).double(), (5,), (1,)),
    "linear, no bias, three axes": lambda: Case(nn.Linear(5, 4, bias=False).double(), (3, 5), (2,)),
    "mm": lambda: Case(_product((5, 4), 0, lambda x, w, b: x @ w), (5,), (1,)),
    "addmm, as Conv1D of GPT-2": lambda: Case(_product((5, 4), 4, lambda x, w, b: torch.addmm(b, x, w)), (5,), (1,)),
    "matmul of three axes": lambda: Case(_product((5, 4), 0, lambda x, w, b: x @ w), (3, 5), (2,)),
    "weight from the left": lambda: Case(_product((4, 5), 0, lambda x, w, b: w @ x.T), (5,), (0,)),
    "weight from the left, batches": lambda: Case(_product((4, 5), 0, lambda x, w, b: w @ x), (5, 3), (1,)),
    "bmm": lambda: Case(_product((3, 5, 4), 0, lambda x, w, b: torch.bmm(x.transpose(0, 1), w)), (3, 5), (0, 2)),
    "bmm from the left": lambda: Case(
        _product((3, 4, 5), 0, lambda x, w, b: torch.bmm(w, x.permute(1, 2, 0))), (3, 5), (0, 1)
    ),
    "einsum": lambda: Case(_product((3, 4, 5), 0, lambda x, w, b: torch.einsum("ngi,goi->ngo", x, w)), (3, 5), (1, 2)),
    "einsum over two axes": lambda: Case(
        _product((4, 3, 5), 0, lambda x, w, b: torch.einsum("nai,oai->no", x, w)), (3, 5), (1,)
    ),
}


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    """Of one to three dimensions: grouped, depthwise, dilated, strided and transposed."""
    spatial, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3]))
    each_in, each_out = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    number = st.integers(1, 3 if spatial == 1 else 2)
    kernel, stride, dilation = (tuple(draw(number) for _ in range(spatial)) for _ in range(3))
    reach = [gap * (size - 1) for gap, size in zip(dilation, kernel, strict=True)]
    padding = tuple(draw(st.integers(0, 1)) for _ in range(spatial))
    options: dict[str, Any] = {"groups": groups, "bias": draw(st.booleans())}
    transposed = draw(st.booleans())
    if transposed:
        most = [max(step, gap) - 1 for step, gap in zip(stride, dilation, strict=True)]
        options["output_padding"] = tuple(draw(st.integers(0, each)) for each in most)
        padding = tuple(min(pad, r) for pad, r in zip(padding, reach, strict=True))
    kind: Any = getattr(nn, f"Conv{'Transpose' if transposed else ''}{spatial}d")
    torch.manual_seed(draw(st.integers(0, 99)))
    layer = kind(
        groups * each_in, groups * each_out, kernel, stride=stride, dilation=dilation, padding=padding, **options
    )
    size = tuple(r + draw(st.integers(2, 3)) for r in reach)
    return Case(layer.double(), (groups * each_in, *size), (1,))
