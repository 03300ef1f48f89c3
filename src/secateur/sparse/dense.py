"""Dense layers, with what follows them folded in: in torch's kernels, but for depthwise convolutions.

They are what a sparse layer is timed against, and what stays where it does not pay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.sparse.depthwise import depthwise_conv2d
from secateur.sparse.layers import SparseConv2d, SparseLinear
from secateur.sparse.native import why_missing
from secateur.sparse.window import Pair, Window

Activation = Literal["none", "relu", "relu6", "gelu"]

ACTIVATE: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda y: y,
    "relu": torch.relu_,
    "relu6": lambda y: F.hardtanh_(y, 0.0, 6.0),
    "gelu": lambda y: torch.ops.aten.gelu_(y),
}
"""In place."""


class DenseLayer(nn.Module):
    """activation(weight · x + bias + residual)."""

    kind: Literal["linear", "conv"]
    weight: Tensor
    bias: Tensor | None

    def __init__(self, name: str, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.name = name
        self.activation: Activation = "none"
        self.norms = 0
        """How many are folded in."""
        self.register_buffer("weight", weight.detach().contiguous())
        self.register_buffer("bias", None if bias is None else bias.detach().contiguous())

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        y = self.product(x)  # nobody else holds it, so the rest happens in place
        return ACTIVATE[self.activation](y if residual is None else y.add_(residual))

    def product(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def fold(self, scale: Tensor, shift: Tensor) -> None:
        """Makes the layer compute scale · y + shift of each output. Zeros stay zeros: a row is only scaled."""
        rows = scale.view(-1, *[1] * (self.weight.ndim - 1))
        bias = torch.zeros_like(shift) if self.bias is None else self.bias.double()
        self.weight = (self.weight.double() * rows).float()
        self.bias = (bias * scale + shift).float()
        self.norms += 1

    @property
    def why_never_sparse(self) -> str | None:
        """What the sparse kernels do not compute, whatever the weights."""
        return None

    @property
    def rows_in_a_group(self) -> int:
        """Blocks of neighbouring outputs do not reach across groups."""
        return self.weight.shape[0]

    def packed(self, block: int, x: Tensor) -> nn.Module:
        """The same layer without its zeros, for inputs such as `x`."""
        raise NotImplementedError


class DenseLinear(DenseLayer):
    kind = "linear"

    def product(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def packed(self, block: int, x: Tensor) -> nn.Module:
        one_example = x.shape[:-1].numel() == 1
        return SparseLinear.pack(
            self.weight, self.bias, block=block, activation=self.activation, one_example=one_example
        )


class DenseConv2d(DenseLayer):
    kind = "conv"

    def __init__(self, name: str, weight: Tensor, bias: Tensor | None, window: Window) -> None:
        super().__init__(name, weight, bias)
        self.kernel: Pair = weight.shape[2], weight.shape[3]
        self.window = window.in_numbers(self.kernel)
        self.depthwise = window.groups > 1 and weight.shape[1] == 1

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if not self.own_kernel:
            return super().forward(x, residual)
        return depthwise_conv2d(self, x, residual)

    @property
    def own_kernel(self) -> bool:
        """Whether it runs in a kernel of ours."""
        return self.depthwise and not isinstance(self.window.padding, str) and why_missing() is None

    def product(self, x: Tensor) -> Tensor:
        how = self.window
        return F.conv2d(x, self.weight, self.bias, how.stride, how.padding, how.dilation, how.groups)

    @property
    def why_never_sparse(self) -> str | None:
        if self.depthwise:
            return "depthwise"
        if isinstance(self.window.padding, str):
            return "its padding differs from side to side"
        return None

    @property
    def rows_in_a_group(self) -> int:
        return self.weight.shape[0] // self.window.groups

    def packed(self, block: int, x: Tensor) -> nn.Module:
        return SparseConv2d.pack(self.weight, self.bias, self.window, block=block, activation=self.activation)
