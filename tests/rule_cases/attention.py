"""Attention."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import add, numbers

aten = torch.ops.aten


class Attention(nn.Module):
    """Eight heads of two, or as many of keys and values as given."""

    def __init__(
        self, kernel: Callable[..., Tensor], scale: float | None = 0.4, kv_heads: int = 8, bias: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self.kernel, self.scale, self.head_dim = kernel, scale, 2
        self.query, self.key = nn.Linear(6, 16), nn.Linear(6, 2 * kv_heads)
        self.value, self.last = nn.Linear(6, 2 * kv_heads), nn.Linear(16, 5)
        if bias:
            self.bias = nn.Parameter(torch.randn(bias))

    def forward(self, x: Tensor) -> Tensor:
        parts = (
            layer(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        given = {"attn_mask": self.bias} if hasattr(self, "bias") else {}
        return self.last(self.kernel(*parts, scale=self.scale, **given).transpose(1, 2).flatten(2))


HEADS = {"query.weight": 0, "key.weight": 0, "value.weight": 0, "last.weight": 1}
sdpa = F.scaled_dot_product_attention
KERNELS: dict[str, Callable[..., Tensor]] = {
    "scaled_dot_product_attention": sdpa,
    "causal attention": lambda *qkv, scale: sdpa(*qkv, is_causal=True, scale=scale),
    "_scaled_dot_product_flash_attention_for_cpu": lambda *qkv, scale: aten._scaled_dot_product_flash_attention_for_cpu(
        *qkv, scale=scale
    )[0],
    "attention by hand": lambda q, k, v, scale: (q @ k.mT * (scale or 0.3)).softmax(-1) @ v,
    "_scaled_dot_product_attention_math": lambda *qkv, scale: aten._scaled_dot_product_attention_math(
        *qkv, scale=scale
    )[0],
}
for name, kernel in KERNELS.items():
    add(name, lambda f=kernel: Attention(f), numbers(2, 5, 6), HEADS, groups=("query",))
    add(f"{name}, scale of its own", lambda f=kernel: Attention(f, None), numbers(2, 5, 6), HEADS)
add(
    "attention with a bias for each head",
    lambda: Attention(sdpa, bias=(8, 5, 5)),
    numbers(2, 5, 6),
    {**HEADS, "bias": 0},
)
add("attention with one bias for all heads", lambda: Attention(sdpa, bias=(5, 5)), numbers(2, 5, 6), HEADS)
add(
    "grouped-query attention",
    lambda: Attention(lambda *qkv, scale: sdpa(*qkv, scale=scale, enable_gqa=True), kv_heads=4),
    numbers(2, 5, 6),
    HEADS,
)
add(
    "multi-query attention",
    lambda: Attention(lambda *qkv, scale: sdpa(*qkv, scale=scale), kv_heads=1),
    numbers(2, 5, 6),
    {"query.weight": 0, "last.weight": 1},
)


class Slots(nn.Module):
    """One head that attends to learned slots: widths of queries and of values, and the slots, can all go."""

    def __init__(self, scale: float | None, bias: bool = False) -> None:
        super().__init__()
        self.scale = scale
        self.query, self.last = nn.Linear(6, 8), nn.Linear(12, 5)
        self.keys, self.values = nn.Parameter(torch.randn(16, 8)), nn.Parameter(torch.randn(16, 12))
        self.bias = nn.Parameter(torch.randn(16)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        keys, values = self.keys.expand(x.shape[0], -1, -1), self.values.expand(x.shape[0], -1, -1)
        mask = None if self.bias is None else self.bias.expand(x.shape[1], -1)
        return self.last(sdpa(self.query(x), keys, values, mask, scale=self.scale))


SLOTS = {"keys": 0, "values": 0, "values#2": 1, "last.weight": 1}
add("attention to slots", lambda: Slots(0.3), numbers(2, 5, 6), {**SLOTS, "keys#2": 1, "query.weight": 0})
add("attention to slots, biased", lambda: Slots(0.3, bias=True), numbers(2, 5, 6), {**SLOTS, "bias": 0})
add(
    "attention to slots, scale of its own",
    lambda: Slots(None),
    numbers(2, 5, 6),
    SLOTS,
    left={"query": "attention scale"},
)
