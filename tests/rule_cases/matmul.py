"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import FIRST, Chain, PerChannel, add, numbers, stays, tokens


class Product(nn.Module):
    """Two sides that are multiplied along the width of both."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], reads: int, bias: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(6, 16), nn.Linear(6, 16), nn.Linear(reads, 5)
        self.function = function
        if bias:
            self.bias = nn.Parameter(torch.randn(bias))

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.left(x), self.right(x)
        return self.last(self.function(left, right, self.bias) if hasattr(self, "bias") else self.function(left, right))


BOTH = {"left.weight": 0, "left.bias": 0, "right.weight": 0}
add("matmul", lambda: Product(lambda a, b: a @ b.mT, 4), numbers(2, 4, 6), BOTH)
add(
    "matmul the other way",
    lambda: Product(lambda a, b: (a.mT @ b).amax(1), 16),
    numbers(2, 4, 6),
    {**BOTH, "last.weight": 1},
)
add("bmm", lambda: Product(lambda a, b: torch.bmm(a, b.mT), 4), numbers(2, 4, 6), BOTH)
add("mm", lambda: Product(lambda a, b: torch.mm(a, b.t()), 4), numbers(4, 6), BOTH)
add("mv", lambda: Product(lambda a, b: torch.mv(a, b[0]), 4), numbers(4, 6), BOTH)
add("dot", lambda: Product(lambda a, b: torch.dot(a[0], b[1])[None], 1), numbers(2, 6), BOTH)
add("vdot", lambda: Product(lambda a, b: torch.vdot(a[0], b[1])[None], 1), numbers(2, 6), BOTH)
add("a vector times matrices", lambda: Product(lambda a, b: torch.matmul(a[0, 0], b.mT), 4), numbers(2, 4, 6), BOTH)
add("matrices times a vector", lambda: Product(lambda a, b: torch.matmul(a, b[0, 0]), 4), numbers(2, 4, 6), BOTH)
add(
    "vector times vector", lambda: Product(lambda a, b: torch.matmul(a[0, 0], b[0, 1])[None], 1), numbers(2, 4, 6), BOTH
)
add("matrices times a matrix", lambda: Product(lambda a, b: torch.matmul(a, b[0].t()), 4), numbers(2, 4, 6), BOTH)
add("a matrix times matrices", lambda: Product(lambda a, b: torch.matmul(a[0], b.mT), 4), numbers(2, 4, 6), BOTH)
add("addmm", lambda: Product(lambda a, b, c: torch.addmm(c, a, b.t()), 4, (4,)), numbers(4, 6), BOTH)
add("baddbmm", lambda: Product(lambda a, b, c: torch.baddbmm(c, a, b.mT), 4, (4, 4)), numbers(2, 4, 6), BOTH)
add("addmv", lambda: Product(lambda a, b, c: torch.addmv(c, a, b[0]), 4, (4,)), numbers(4, 6), BOTH)
add(
    "addbmm",
    lambda: Product(lambda a, b, c: torch.addbmm(c, a, b.mT), 4, (4, 4)),
    numbers(2, 4, 6),
    {},
    left={"left": "`addbmm`"},
)
add("einsum", lambda: Product(lambda a, b: torch.einsum("bic,bjc->bij", a, b), 4), numbers(2, 4, 6), BOTH)
add(
    "einsum without output",
    lambda: Product(lambda a, b: torch.einsum("bic,bjc", a, b).sum(0), 4),
    numbers(2, 4, 6),
    {},
    left={},
)
add(
    "einsum with an ellipsis",
    lambda: Product(lambda a, b: torch.einsum("...c,...c->...", a, b), 4),
    numbers(2, 4, 6),
    {},
    left={},
)
add(
    "einsum over a broadcast axis",
    lambda: Product(lambda a, b: torch.einsum("bic,bkc->bic", a, b[:, :1].mean(2, keepdim=True)), 16),
    numbers(2, 4, 6),
    {"left.weight": 0, "right.weight": 0, "last.weight": 1},
)
add(
    "outer product, flattened",
    lambda: Product(lambda a, b: torch.einsum("btc,btd->btcd", a, b).flatten(-2), 256),
    numbers(2, 4, 6),
    {"last.weight": 1},
)

tokens(
    "linear",
    PerChannel(lambda x, s: F.linear(x, s), 12, 16),
    reads=12,
    cut={**FIRST, "op.scale": 1, "op.scale#2": 0},
    groups=("first", "op"),
)
tokens(
    "a matrix on the right",
    PerChannel(lambda x, s: x @ s, 16, 12),
    reads=12,
    cut={**FIRST, "op.scale": 0, "op.scale#2": 1},
    groups=("first", "op"),
)
tokens(
    "a matrix on the left",
    PerChannel(lambda x, s: (s @ x.mT).mT, 12, 16),
    reads=12,
    cut={**FIRST, "op.scale": 1, "op.scale#2": 0},
    groups=("first", "op"),
)
tokens(
    "matrices by batch",
    PerChannel(lambda x, s: x @ s, 2, 16, 12),
    reads=12,
    cut={**FIRST, "op.scale": 1, "op.scale#2": 2},
)
tokens("a linear of one row", PerChannel(lambda x, s: F.linear(x, s)[..., None]), reads=1, **stays("`linear`"))
tokens(
    "einsum with a matrix",
    PerChannel(lambda x, s: torch.einsum("btc,cd->btd", x, s), 16, 12),
    reads=12,
    cut={**FIRST, "op.scale": 0, "op.scale#2": 1},
)
add(
    "addmm of channels",
    lambda: Chain(nn.Linear(6, 16), Affine(torch.addmm), nn.Linear(12, 5)),
    numbers(4, 6),
    {**FIRST, "op.weight": 0, "op.weight#2": 1, "op.bias": 0, "last.weight": 1},
    groups=("first", "op"),
)
add(
    "addmm of a bias for each row",
    lambda: Chain(nn.Linear(6, 16), Affine(torch.addmm, (4, 1)), nn.Linear(12, 5)),
    numbers(4, 6),
    {**FIRST, "op.weight": 0, "op.weight#2": 1, "last.weight": 1},
)
add(
    "baddbmm of channels",
    lambda: Chain(nn.Linear(6, 16), Affine(lambda b, x, w: torch.baddbmm(b, x, w.expand(2, -1, -1))), nn.Linear(12, 5)),
    numbers(2, 4, 6),
    {**FIRST, "op.weight": 0, "op.weight#2": 1, "op.bias": 0, "last.weight": 1},
)
add(
    "grouped matmul",
    lambda: Experts(),
    numbers(6, 8),
    {"first.weight": 0, "up": 1, "up#2": 2, "down": 1, "down#2": 2, "last.weight": 1},
    groups=("first", "up", "down"),
)
add(
    "grouped matmul of three axes",
    lambda: Experts(batched=True),
    numbers(6, 8),
    {},
    left={"up": "`_grouped_mm`", "down": "`_grouped_mm`"},
)


class Affine(nn.Module):
    def __init__(self, function: Callable[..., Tensor], bias: tuple[int, ...] = (12,)) -> None:
        super().__init__()
        self.function = function
        self.weight, self.bias = nn.Parameter(torch.randn(16, 12)), nn.Parameter(torch.randn(bias))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.bias, x, self.weight)


class Experts(nn.Module):
    """Rows dealt out to three experts, by offsets."""

    def __init__(self, batched: bool = False) -> None:
        super().__init__()
        self.batched = batched
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 5)
        self.up, self.down = nn.Parameter(torch.randn(3, 16, 32)), nn.Parameter(torch.randn(3, 32, 16))

    def forward(self, x: Tensor) -> Tensor:
        ends = torch.tensor([1, 4, 6], dtype=torch.int32)
        x = self.first(x)
        if self.batched:
            return self.last(
                torch._grouped_mm(torch._grouped_mm(x.expand(3, -1, -1), self.up).relu(), self.down).sum(0)
            )
        return self.last(torch._grouped_mm(torch._grouped_mm(x, self.up, offs=ends).relu(), self.down, offs=ends))
