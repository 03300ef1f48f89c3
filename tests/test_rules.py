"""Every op rule on its own: a layer, the operator, a layer, cut and proven, with what has to go and what has to stay.

Each case names the tensors that lose exactly the amount along an axis, or the layers that are left alone and for which
reason. The proof is `verify`, which shares nothing with the rules; the last test makes sure that no rule is forgotten.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.flop_counter import FlopCounterMode

import secateur
from secateur.capture.forward import capture
from secateur.couple.rules import RULES
from secateur.cut import cut
from secateur.example_inputs import as_call

aten = torch.ops.aten
AMOUNTS = [0.25, 0.5, 0.75]


@dataclass(frozen=True)
class Case:
    """A model and what becomes of it."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    cut: Mapping[str, int] = field(default_factory=dict)
    """Tensors that lose the amount, with the axis; "name#2" where a tensor loses along another axis as well."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Layers that stay, with a part of the reason."""
    groups: tuple[str, ...] = ()
    """The names of the groups that are cut, where they matter."""
    moved: bool = True
    """Whether the removed channels had an influence; on a maximum, the smallest may have none."""

    def __str__(self) -> str:
        return self.name


CASES: list[Case] = []
ALONE = {"first.weight": 0, "first.bias": 0}
FIRST = {**ALONE, "last.weight": 1}


class Chain(nn.Module):
    """A layer, what is tested, and a layer that reads the result. Functions get the inputs after the first, too."""

    def __init__(self, first: nn.Module, op: Callable[..., Tensor], last: nn.Module) -> None:
        super().__init__()
        self.first, self.op, self.last = first, op, last

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.last(self.op(self.first(x), *others))


class Conv(nn.Module):
    """A convolution that arrives as one in inference mode, too; nn.Conv2d would arrive as "conv2d"."""

    def __init__(self, axes: int, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(outputs, inputs, *[kernel] * axes)),
            nn.Parameter(torch.randn(outputs)),
        )
        self.geometry = [1.0] * axes, [kernel / 2 - 0.5] * axes

    def forward(self, x: Tensor) -> Tensor:
        ones, padding = ([int(n) for n in each] for each in self.geometry)
        return aten.convolution(x, self.weight, self.bias, ones, padding, ones, False, [0] * len(ones), 1)


def add(
    name: str, build: Callable[[], nn.Module], inputs: Callable[[], Any], cut: Mapping[str, int], **more: Any
) -> None:
    CASES.append(Case(name, build, inputs, cut, **more))


def numbers(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(shape, generator=torch.Generator().manual_seed(3))


def tokens(name: str, op: Callable[..., Tensor], reads: int = 16, cut: Mapping[str, int] = FIRST, **more: Any) -> None:
    """Linear, then `op` on [2, 4, 16], then Linear over the last axis."""
    add(name, lambda: Chain(nn.Linear(6, 16), made(op), nn.Linear(reads, 5)), numbers(2, 4, 6), cut, **more)


def line(name: str, op: Callable[..., Tensor], reads: int = 16, cut: Mapping[str, int] = FIRST, **more: Any) -> None:
    """Convolution, then `op` on [2, 16, 12], then a convolution over channels."""
    add(name, lambda: Chain(Conv(1, 3, 16, 3), made(op), Conv(1, reads, 5, 1)), numbers(2, 3, 12), cut, **more)


def image(name: str, op: Callable[..., Tensor], reads: int = 16, cut: Mapping[str, int] = FIRST, **more: Any) -> None:
    """The same in two dimensions: `op` on [2, 16, 8, 8]."""
    add(name, lambda: Chain(Conv(2, 3, 16, 3), made(op), Conv(2, reads, 5, 1)), numbers(2, 3, 8, 8), cut, **more)


def volume(name: str, op: Callable[..., Tensor], reads: int = 16, cut: Mapping[str, int] = FIRST, **more: Any) -> None:
    """And in three: `op` on [2, 16, 4, 4, 4]."""
    add(name, lambda: Chain(Conv(3, 2, 16, 1), made(op), Conv(3, reads, 5, 1)), numbers(2, 2, 4, 4, 4), cut, **more)


def made(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A module of its own for every model that is built; functions have no state."""
    return copy.deepcopy(op) if isinstance(op, nn.Module) else op


def stays(reason: str, **more: str) -> dict[str, Any]:
    return {"cut": {}, "left": {"first": reason, **more}}


# -- elementwise

POINTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "add": lambda x: x + 0.3 * x.abs(),
    "masked_fill": lambda x: x.masked_fill(x > 0.2, -1.5),
    "where": lambda x: torch.where(x > 0, x, 0.2 * x),
    "type_as": lambda x: x.type_as(torch.zeros((), dtype=torch.float64)).type_as(x),
    "floor_divide": lambda x: x + x.floor_divide(0.3),
    "lerp": lambda x: x.lerp(x.exp(), 0.3),
    "addcmul": lambda x: x.addcmul(x.sin(), x.cos()),
    "addcdiv": lambda x: x.addcdiv(x, 2 + x.cos()),
    "fmod": lambda x: x.fmod(0.7),
    "remainder": lambda x: x.remainder(0.7),
    "fill": lambda x: x + aten.fill.Scalar(x, 0.3),
    "fill in place": lambda x: x + torch.empty_like(x).fill_(0.3),
    "zero": lambda x: x + aten.zero(x),
    "zero in place": lambda x: x + torch.empty_like(x).zero_(),
    "copy": lambda x: aten.copy(x, 2 * x),
    "copy in place": lambda x: torch.empty_like(x).copy_(2 * x),
    "positive": lambda x: +x,
    "clamp": lambda x: x.clamp(-0.5, 0.6),
    "clamp in place": lambda x: (1 * x).clamp_(-0.5, 0.6),
    "bernoulli": lambda x: x * torch.bernoulli(torch.ones_like(x)),
    "__and__": lambda x: x * (aten.__and__(x > 0, x < 1) + 0.5),
    "__or__": lambda x: x * (aten.__or__(x < 0, x > 1) + 0.5),
    "bitwise_and": lambda x: x * (torch.bitwise_and(x > 0, x < 1) + 0.5),
    "bitwise_or": lambda x: x * (torch.bitwise_or(x < 0, x > 1) + 0.5),
    "bitwise_not": lambda x: x * (torch.bitwise_not(x < 0) + 0.5),
    "logical_and": lambda x: x * (torch.logical_and(x > 0, x < 1) + 0.5),
    "logical_or": lambda x: x * (torch.logical_or(x < 0, x > 1) + 0.5),
    "logical_not": lambda x: x * (torch.logical_not(x < 0) + 0.5),
    "logical_xor": lambda x: x * (torch.logical_xor(x < 0, x < 1) + 0.5),
    "pow": lambda x: x.pow(3),
    "threshold": lambda x: F.threshold(x, 0.1, 2.0),
    "zeros_like": lambda x: x + torch.zeros_like(x),
    "ones_like": lambda x: x + torch.ones_like(x),
    "full_like": lambda x: x + torch.full_like(x, 0.5),
    "rand_like": lambda x: x + 0 * torch.rand_like(x),
    "randn_like": lambda x: x + 0 * torch.randn_like(x),
    "softplus": F.softplus,
    "elu": F.elu,
    "celu": F.celu,
    "selu": F.selu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": F.leaky_relu,
    "log_sigmoid": F.logsigmoid,
    "hardtanh": lambda x: F.hardtanh(x, -0.4, 0.4),
    "gelu": F.gelu,
    "silu": F.silu,
    "relu in place": lambda x: (1 * x).relu_(),
    "nan_to_num": torch.nan_to_num,
    "expand_as": lambda x: x + x.mean(-1, keepdim=True).expand_as(x),
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "native_dropout": lambda x: aten.native_dropout(x, 0.5, False)[0],
    "feature_dropout": lambda x: F.dropout1d(x, 0.5, training=False),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=False),
    "angle": lambda x: x * (x.angle() + 1),
    "complex": lambda x: torch.view_as_real(torch.complex(x, x.sin())).sum(-1),
    "polar": lambda x: torch.view_as_real(torch.polar(x.exp(), x)).sum(-1),
    "conj": lambda x: torch.view_as_real(torch.complex(x, x.sin()).conj().resolve_conj()).sum(-1),
    "_conj_physical": lambda x: torch.view_as_real(aten._conj_physical(torch.complex(x, x.sin()))).sum(-1),
    "view_as": lambda x: x.view_as(x),
    "maximum": lambda x: torch.maximum(x, x.sin()),
    "minimum": lambda x: torch.minimum(x, x.exp()),
    "max of two": lambda x: torch.max(x, x.sin()),
    "clone": lambda x: x.clone(),
    "to": lambda x: x.to(torch.float64).to(x.dtype),
    "contiguous": lambda x: x.mT.contiguous().mT,
    "detach": lambda x: x.detach(),
    "alias": lambda x: aten.alias(x),
    "_prelu_kernel of one": lambda x: F.prelu(x, x.new_full((1,), 0.3)),
    "literal": lambda x: x * torch.tensor(0.3) + torch.tensor([0.5]),
    "lift_fresh_copy": lambda x: x * aten.lift_fresh_copy(torch.tensor(0.3)),
    "equal sizes are compared": lambda x: x if x.shape[-1] == x.size(2) else 2 * x,
    "_assert_async": lambda x: (aten._assert_async(torch.ones((), dtype=torch.bool)), x)[1],
    "_assert_tensor_metadata": lambda x: (aten._assert_tensor_metadata(x, dtype=x.dtype), x)[1],
    "item": lambda x: x * (1 + torch.ones(()).item()),
    "is_nonzero": lambda x: x if torch.ones(()) else 2 * x,
}
for name, op in POINTWISE.items():
    tokens(name, op)

tokens("rrelu", lambda x: aten.rrelu(x, 0.1, 0.3), cut={})
tokens("resolve_neg", lambda x: torch.complex(x, x.sin()).conj().imag.resolve_neg() + x, cut={})
tokens("values are looked at", lambda x: x if torch.equal(x, x) else 2 * x, **stays("`equal`"))


class PerChannel(nn.Module):
    """A function of x and of a parameter with a value for each channel."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.randn(shape or (16,), generator=torch.Generator().manual_seed(4)))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.scale)


SCALE = {**FIRST, "op.scale": 0}
tokens("a scale", PerChannel(lambda x, s: x * s), cut=SCALE)
tokens("a scale on the left", PerChannel(lambda x, s: s * x), cut=SCALE)
image("a scale over space", PerChannel(lambda x, s: s * x, 16, 1, 1), cut=SCALE)
image("a map over space", PerChannel(lambda x, s: s + x, 1, 8, 8))
tokens("where with a default for each channel", PerChannel(lambda x, s: torch.where(x > 0, x, s)), cut=SCALE)
image("prelu", PerChannel(F.prelu), cut=SCALE)
tokens("prelu over tokens", PerChannel(F.prelu, 4))
image("prelu of one", PerChannel(F.prelu, 1))
tokens("in place onto a parameter's copy", PerChannel(lambda x, s: s.expand(x.shape).clone().mul_(x)), cut=SCALE)
tokens("copy in place from a parameter", PerChannel(lambda x, s: x + torch.zeros_like(x).copy_(s)), cut=SCALE)
tokens(
    "a matrix that is cloned",
    PerChannel(lambda x, s: F.linear(x, s.clone()), 8, 16),
    reads=8,
    cut={**FIRST, "op.scale": 1, "op.scale#2": 0},
    groups=("first", "op"),
)

CONSTANTS: dict[str, Callable[[Tensor], Tensor]] = {
    "full": lambda x: torch.full(x.shape, 0.5),
    "zeros": lambda x: torch.zeros(x.shape),
    "ones": lambda x: torch.ones(x.shape[-1]),
    "empty": lambda x: torch.empty(x.shape).fill_(0.1),
    "rand": lambda x: 0 * torch.rand(x.shape),
    "randn": lambda x: 0 * torch.randn(x.shape),
    "new_zeros": lambda x: x.new_zeros(x.shape),
    "new_ones": lambda x: x.new_ones(x.shape[-1]),
    "new_full": lambda x: x.new_full(x.shape, 0.5),
    "new_empty": lambda x: x.new_empty(x.shape).fill_(0.1),
    "scalar_tensor": lambda x: torch.scalar_tensor(0.5),
}
for name, op in CONSTANTS.items():
    tokens(f"{name} of the same size", lambda x, op=op: x + op(x))
tokens("zeros of a literal size", lambda x: x + torch.zeros(16), **stays("literal in the code (`zeros`"))
tokens("new_zeros of a literal size", lambda x: x + x.new_zeros(16), **stays("literal in the code (`new_zeros`"))
image("zeros beside channels", lambda x: torch.cat([x, torch.zeros_like(x)], 1), reads=32)

COUNTED: dict[str, Callable[[int], Tensor]] = {
    "arange": lambda n: torch.arange(n),
    "linspace": lambda n: torch.linspace(0, 1, n),
    "logspace": lambda n: torch.logspace(0, 1, n),
    "randint": lambda n: torch.randint(5, (n,)),
    "randperm": lambda n: torch.randperm(n),
    "hann_window": lambda n: torch.hann_window(n),
    "eye": lambda n: torch.eye(n).sum(0),
    "tril_indices": lambda n: torch.tril_indices(n, n).sum() * torch.ones(n),
    "triu_indices": lambda n: torch.triu_indices(n, n).sum() * torch.ones(n),
}
for name, counted in COUNTED.items():
    tokens(f"{name} as long as space", lambda x, f=counted: x + f(4)[:, None])
    tokens(f"{name} as long as channels", lambda x, f=counted: x + f(16), **stays(""))

for name, triangle in {"tril": torch.tril, "triu": torch.triu}.items():
    tokens(f"{name} of channels", lambda x, f=triangle: f(x), **stays(f"`{name}`"))
    tokens(f"{name} of batch and space", lambda x, f=triangle: f(x.permute(2, 0, 1)).permute(1, 2, 0))

HALVES = {"first.weight": 0, "last.weight": 1}
tokens("glu", lambda x: F.glu(x, -1), reads=8, cut=HALVES)
image("glu over channels", lambda x: F.glu(x, 1), reads=8, cut=HALVES)
image("glu over space", lambda x: F.glu(x, 2))
tokens("diff over channels", lambda x: x.diff(dim=-1), reads=15, cut={})
tokens("diff over space", lambda x: x.diff(dim=1))
tokens("diff with a start", lambda x: x.diff(dim=1, prepend=x[:, :1]))
tokens(
    "complex pairs",
    lambda x: torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()).exp()).flatten(-2),
)
tokens(
    "complex halves",
    lambda x: torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (2, -1)).mT.contiguous()).exp()).flatten(-2),
)
tokens(
    "view_as_complex of channels",
    lambda x: torch.view_as_complex(x[..., :2].contiguous()).abs() * x.mean(-1),
    reads=4,
    cut={},
)


# -- lookups by index

IDS = torch.tensor([[2, 0, 3, 1], [1, 1, 0, 2]])


def which() -> Tensor:
    """Made in the pass: a tensor from elsewhere would be taken for the result of code that cannot be seen."""
    return torch.tensor([3, 0, 2])


class Embedded(nn.Module):
    """Ids, looked up; the rows are read by a mean over the vocabulary as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Embedding(8, 16), nn.Linear(16, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.first(ids) - self.first.weight.mean(0))


add(
    "embedding",
    lambda: Chain(nn.Embedding(8, 16), F.relu, nn.Linear(16, 5)),
    lambda: IDS,
    {"first.weight": 1, "last.weight": 1},
    groups=("first",),
)
add("embedding whose rows are averaged", Embedded, lambda: IDS, {"first.weight": 1, "last.weight": 1})
add(
    "a table of positions",
    lambda: Chain(
        nn.Linear(6, 16), PerChannel(lambda x, s: x + F.embedding(torch.arange(4), s), 12, 16), nn.Linear(16, 5)
    ),
    numbers(2, 4, 6),
    {**FIRST, "op.scale": 1},
)

tokens("index over space", lambda x: x[:, which()])
tokens("index over batch and space", lambda x: x[torch.tensor([1, 0, 1]), which()])
tokens("index around channels", lambda x: x.permute(0, 2, 1)[torch.tensor([1, 0, 1]), :, which()])
image("index behind channels", lambda x: x[:, :, which(), torch.tensor([1, 1, 5])][..., None])
image("index behind channels, broadcast", lambda x: x[:, :, which()[:, None], which()])
tokens("index over channels", lambda x: x[..., which()], reads=3, **stays("indexed by numbers (`index`"))
tokens("_unsafe_index", lambda x: aten._unsafe_index(x, [None, which()]))
tokens("index by a mask", lambda x: x[:, torch.tensor([True, False, True, True])])
tokens(
    "index by a mask over channels", lambda x: x[..., torch.arange(16) < 7], reads=7, **stays("a mask is laid over it")
)
tokens(
    "index by a mask and a number",
    lambda x: x[torch.tensor([1]), torch.tensor([True, False, False, False])],
    cut={},
    left={"first": "`index`"},
)
tokens(
    "index of a parameter's rows", PerChannel(lambda x, s: x + s[which()].mean(0), 8, 16), cut={**FIRST, "op.scale": 1}
)
tokens("index of a table by two", PerChannel(lambda x, s: x + s[:, which(), which()].sum(-1), 16, 5, 5), cut=SCALE)


def put(x: Tensor, values: Tensor) -> Tensor:
    y = x.clone()
    y[:, which()] = values
    return y


tokens("index_put of channels", PerChannel(put, 3, 16), cut={**FIRST, "op.scale": 1})
tokens("index_put of one row for all", PerChannel(put, 16), cut=SCALE)
tokens("index_put of a number", PerChannel(put, 1))
tokens(
    "index_put, not in place",
    PerChannel(lambda x, s: aten.index_put(x, [None, which()], s), 3, 16),
    cut={**FIRST, "op.scale": 1},
)
tokens(
    "_unsafe_index_put",
    PerChannel(lambda x, s: aten._unsafe_index_put(x, [None, which()], s), 3, 16),
    cut={**FIRST, "op.scale": 1},
)
tokens(
    "_index_put_impl",
    PerChannel(lambda x, s: aten._index_put_impl(x, [None, which()], s, True), 3, 16),
    cut={**FIRST, "op.scale": 1},
)
tokens(
    "index_put into channels",
    lambda x: aten.index_put(x, [None, None, which()], x.new_ones(())),
    **stays("`index_put`"),
)
tokens("index_select over space", lambda x: x.index_select(1, which()))
tokens("index_select over channels", lambda x: x.index_select(-1, which()), reads=3, **stays("`index_select`"))
for name, written in {"index_add": torch.index_add, "index_copy": torch.index_copy}.items():
    tokens(
        f"{name} over space", PerChannel(lambda x, s, f=written: f(x, 1, which(), s.expand(2, 3, -1)), 16), cut=SCALE
    )
    tokens(
        f"{name} over channels",
        PerChannel(lambda x, s, f=written: f(x, 2, which(), s.expand(2, 4, 3)), 3),
        **stays(f"`{name}`"),
    )
    tokens(
        f"{name} of channels",
        PerChannel(lambda x, s, f=written: F.linear(x, f(torch.zeros_like(s), 0, torch.arange(8), s)), 8, 16),
        reads=8,
        cut={**ALONE, "op.scale": 1},
    )


def rows(x: Tensor) -> Tensor:
    return which()[None, :, None].expand(x.shape[0], 3, x.shape[2])


tokens("gather over space", lambda x: x.gather(1, rows(x)))
tokens("gather over channels", lambda x: x.gather(2, which().expand(2, 4, 3)), reads=3, **stays("`gather`"))
tokens(
    "gather of a part",
    lambda x: x.gather(1, which()[None, :, None].expand(2, 3, 8)),
    reads=8,
    **stays("part of it is indexed (`gather`"),
)
SCATTERS: dict[str, Callable[[Tensor, int, Tensor, Tensor], Tensor]] = {
    "scatter": torch.scatter,
    "scatter_add": torch.scatter_add,
    "scatter_reduce": lambda x, d, i, s: torch.scatter_reduce(x, d, i, s, "sum"),
}
for name, scatter in SCATTERS.items():
    tokens(
        f"{name} over space", PerChannel(lambda x, s, f=scatter: f(x, 1, rows(x), s.expand(2, 3, -1)), 16), cut=SCALE
    )
    tokens(
        f"{name} over channels",
        PerChannel(lambda x, s, f=scatter: f(x, 2, which().expand(2, 4, 3), s.expand(2, 4, 3)), 3),
        **stays(f"`{name}`"),
    )
    tokens(
        f"{name} of channels",
        PerChannel(
            lambda x, s, f=scatter: F.linear(
                x, f(torch.zeros_like(s), 0, torch.arange(8)[:, None].expand(8, x.shape[2]), s)
            ),
            8,
            16,
        ),
        reads=8,
        cut={**ALONE, "op.scale": 1},
    )
tokens("scatter of a number", lambda x: x.scatter(1, rows(x), 0.5))

RANKED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "topk": lambda x, d: x.topk(3, d)[0],
    "sort": lambda x, d: x.sort(d)[0],
    "argsort": lambda x, d: x.argsort(d) + 0.5,
    "kthvalue": lambda x, d: x.kthvalue(2, d, keepdim=True)[0],
    "mode": lambda x, d: x.mode(d, keepdim=True)[0],
    "cummax": lambda x, d: x.cummax(d)[0],
    "cummin": lambda x, d: x.cummin(d)[0],
    "argmax": lambda x, d: x.argmax(d, keepdim=True) + 0.5,
    "argmin": lambda x, d: x.argmin(d, keepdim=True) + 0.5,
    "median": lambda x, d: x.median(d, keepdim=True)[0],
    "max with its place": lambda x, d: x.max(d, keepdim=True)[0],
    "min with its place": lambda x, d: x.min(d)[0].unsqueeze(d),
}
for name, ranked in RANKED.items():
    made_of = name.split()[0]
    tokens(f"{name} over space", lambda x, f=ranked: f(x, 1) * (x[:, :1] + 2), cut=FIRST)
    tokens(
        f"{name} over channels",
        lambda x, f=ranked: f(x, -1).mean(-1, keepdim=True) * x.mean(-1, keepdim=True),
        reads=1,
        cut={},
        left={"first": ""},
    )


# -- matrix products


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


# -- attention


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


# -- convolutions

TWO = {"first.weight": 0, "op.weight": 1, "op.weight#2": 0, "last.weight": 1}
image("convolution", nn.Conv2d(16, 12, 3, stride=2), reads=12, cut={**TWO, "op.bias": 0}, groups=("first", "op"))
image("convolution without bias", nn.Conv2d(16, 12, 3, dilation=2, bias=False), reads=12, cut=TWO)
image(
    "convolution in groups",
    nn.Conv2d(16, 32, 3, groups=4),
    reads=32,
    cut={"first.weight": 0, "op.bias": 0, "last.weight": 1},
    groups=("first", "op"),
)
image("depthwise convolution", nn.Conv2d(16, 16, 3, groups=16), cut={**FIRST, "op.weight": 0, "op.bias": 0})
image(
    "depthwise convolution, two for each",
    nn.Conv2d(16, 32, 3, groups=16),
    reads=32,
    cut={**FIRST, "op.weight": 0, "op.bias": 0},
)
image(
    "groups of one output",
    nn.Conv2d(16, 4, 3, groups=4),
    reads=4,
    cut={"first.weight": 0, "op.weight": 0, "last.weight": 1},
)
image(
    "transposed convolution",
    nn.ConvTranspose2d(16, 12, 2, stride=2),
    reads=12,
    cut={**FIRST, "op.weight": 0, "op.weight#2": 1, "op.bias": 0},
    groups=("first", "op"),
)
image(
    "transposed convolution in groups",
    nn.ConvTranspose2d(16, 32, 2, groups=4),
    reads=32,
    cut={"first.weight": 0, "op.bias": 0, "last.weight": 1},
)
image(
    "transposed depthwise convolution",
    nn.ConvTranspose2d(16, 16, 2, groups=16),
    cut={**FIRST, "op.weight": 0, "op.bias": 0},
)
line("convolution in one dimension", nn.Conv1d(16, 12, 3), reads=12, cut={**TWO, "op.bias": 0})
volume("convolution in three dimensions", nn.Conv3d(16, 16, 2))
add(
    "convolution without a batch",
    lambda: Chain(nn.Conv2d(3, 16, 3), F.relu, nn.Conv2d(16, 5, 1)),
    numbers(3, 8, 8),
    FIRST,
)
add(
    "convolution over what a linear layer made",
    lambda: Chain(nn.Linear(6, 16), nn.Conv1d(4, 4, 3, padding=1), nn.Linear(16, 5)),
    numbers(2, 4, 6),
    {},
    left={"first": "it is space (`convolution`"},
)
image(
    "convolution with a standardised kernel",
    PerChannel(lambda x, s: F.conv2d(x, s - s.mean((1, 2, 3), keepdim=True)), 12, 16, 4, 4),
    reads=12,
    cut={**FIRST, "op.scale": 0, "op.scale#2": 1},
)
image(
    "_convolution",
    PerChannel(
        lambda x, s: torch._convolution(x, s, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, True, True),
        12,
        16,
        1,
        1,
    ),
    reads=12,
    cut={**FIRST, "op.scale": 0, "op.scale#2": 1},
)

add(
    "im2col",
    lambda: Chain(nn.Conv2d(3, 16, 3), lambda x: F.unfold(x, 2).mT, nn.Linear(64, 5)),
    numbers(2, 3, 8, 8),
    FIRST,
)
add(
    "im2col of what a linear layer made",
    lambda: Chain(nn.Linear(6, 16), lambda x: F.unfold(x[:, None], 2).mT, nn.Linear(4, 5)),
    numbers(2, 4, 6),
    {},
    left={"first": "it is space (`im2col`"},
)
add(
    "col2im",
    lambda: Chain(nn.Linear(6, 64), lambda x: F.fold(x.mT, (4, 4), 2, stride=2), nn.Conv2d(16, 5, 1)),
    numbers(2, 4, 6),
    {"first.weight": 0, "last.weight": 1},
)
add(
    "col2im over what a linear layer made",
    lambda: Chain(nn.Linear(6, 16), lambda x: F.fold(x, (8, 8), 2, stride=2), nn.Conv2d(1, 5, 1)),
    numbers(2, 4, 6),
    {},
    left={"first": "it is space (`col2im`"},
)


# -- norms

NORM = {**FIRST, "op.weight": 0, "op.bias": 0}
STATISTICS = {**NORM, "op.running_mean": 0, "op.running_var": 0}
image("batch norm", nn.BatchNorm2d(16), cut=STATISTICS, groups=("first",))
line("batch norm in one dimension", nn.BatchNorm1d(16), cut=STATISTICS)
image("batch norm without a scale", nn.BatchNorm2d(16, affine=False), cut={**FIRST, "op.running_mean": 0})
image("batch norm by the batch's statistics", nn.BatchNorm2d(16, track_running_stats=False), cut=NORM)
image(
    "batch norm with given statistics",
    PerChannel(lambda x, s: F.batch_norm(x, s.mean(1), s.var(1), s[:, 0], s[:, 1]), 16, 3),
    cut=SCALE,
)
tokens("batch norm over tokens", nn.BatchNorm1d(4))
image("instance norm", nn.InstanceNorm2d(16, affine=True), cut=NORM)
image("instance norm without a scale", nn.InstanceNorm2d(16))
tokens("instance norm over tokens", nn.InstanceNorm1d(4))
image("group norm", nn.GroupNorm(4, 16), cut=NORM)
image("group norm of one group", nn.GroupNorm(1, 16), cut=NORM)
image("group norm of a group for each channel", nn.GroupNorm(16, 16), cut=NORM)
image("group norm without a scale", nn.GroupNorm(4, 16, affine=False))
tokens(
    "statistics of a group norm",
    lambda x: x * aten.native_group_norm(x.mT.contiguous(), None, None, 2, x.shape[2], 4, 16, 1e-5)[1][:, None],
    **stays("`native_group_norm`"),
)
tokens("group norm over tokens", nn.GroupNorm(2, 4))
tokens("layer norm", nn.LayerNorm(16), cut=NORM)
tokens("layer norm without a bias", nn.LayerNorm(16, bias=False), cut={**FIRST, "op.weight": 0})
tokens("layer norm without a scale", nn.LayerNorm(16, elementwise_affine=False))
tokens("layer norm over two axes", nn.LayerNorm((4, 16)), cut={**FIRST, "op.weight": 1, "op.bias": 1})
tokens("layer norm of a literal size", lambda x: F.layer_norm(x, (16,)), **stays("literal in the code (`layer_norm`"))
tokens("native_layer_norm over space", lambda x: aten.native_layer_norm(x.mT, [4], None, None, 1e-5)[0].mT)
tokens("statistics of a layer norm", lambda x: x + aten.native_layer_norm(x.mT, [4], None, None, 1e-5)[1].mT)
tokens("_fused_rms_norm", PerChannel(lambda x, s: aten._fused_rms_norm(x.mT, [4], s, 1e-5)[0].mT, 4))
tokens("RMS norm", nn.RMSNorm(16), cut={**FIRST, "op.weight": 0})
image(
    "native_batch_norm",
    PerChannel(lambda x, s: torch.native_batch_norm(x, s, None, s, s.exp(), False, 0.1, 1e-5)[0]),
    cut=SCALE,
)
image(
    "statistics of native_batch_norm",
    PerChannel(lambda x, s: x + torch.native_batch_norm(x, s, None, None, None, True, 0.1, 1e-5)[1][:, None, None]),
    cut=SCALE,
)
image(
    "_batch_norm_no_update",
    PerChannel(lambda x, s: aten._batch_norm_no_update(x, s, None, s, s.exp(), 0.1, 1e-5)[0]),
    cut=SCALE,
)
image(
    "_batch_norm_with_update",
    PerChannel(lambda x, s: aten._batch_norm_with_update(x, s, None, s.clone(), s.exp(), 0.1, 1e-5)[0]),
    cut=SCALE,
)
image(
    "_native_batch_norm_legit",
    PerChannel(lambda x, s: aten._native_batch_norm_legit.no_stats(x, s, None, True, 0.1, 1e-5)[0]),
    cut=SCALE,
)
image(
    "_native_batch_norm_legit_no_training",
    PerChannel(lambda x, s: aten._native_batch_norm_legit_no_training(x, s, None, s, s.exp(), 0.1, 1e-5)[0]),
    cut=SCALE,
)
image(
    "_native_batch_norm_legit_functional",
    PerChannel(lambda x, s: aten._native_batch_norm_legit_functional(x, s, None, s, s.exp(), False, 0.1, 1e-5)[0]),
    cut=SCALE,
)
add(
    "weight norm",
    lambda: Chain(nn.Conv2d(3, 16, 3), parametrizations.weight_norm(nn.Conv2d(16, 12, 1)), nn.Conv2d(12, 5, 1)),
    numbers(2, 3, 6, 6),
    {
        "first.weight": 0,
        "op.parametrizations.weight.original1": 1,
        "op.parametrizations.weight.original1#2": 0,
        "op.parametrizations.weight.original0": 0,
        "last.weight": 1,
    },
)
tokens(
    "weight norm along the other axis",
    PerChannel(lambda x, s: F.linear(x, torch._weight_norm(s, s[:1].exp(), 1)), 12, 16),
    reads=12,
    cut={},
)
tokens(
    "norms of a weight norm",
    PerChannel(lambda x, s: x + aten._weight_norm_interface(s, s[:, :1].exp(), 0)[1][:, 0], 16, 8),
    cut=SCALE,
)


# -- pooling and resampling

for n, base in {1: line, 2: image, 3: volume}.items():
    for kind in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool"):
        pooled = getattr(F, f"{kind}{n}d")
        base(f"{kind}{n}d", lambda x, f=pooled: f(x, 2))
    base(f"upsample_nearest{n}d", lambda x: F.interpolate(x, scale_factor=2))
    base(f"_upsample_nearest_exact{n}d", lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"))
    base(
        f"upsample, {n} linear axes",
        lambda x, n=n: F.interpolate(x, scale_factor=2, mode=("linear", "bilinear", "trilinear")[n - 1]),
    )
image("max_pool2d with its places", lambda x: F.max_pool2d(x, 2, return_indices=True)[0])
volume("max_pool3d with its places", lambda x: F.max_pool3d(x, 2, return_indices=True)[0])
image(
    "mkldnn_max_pool2d", lambda x: aten.mkldnn_max_pool2d(x.to_mkldnn(), [2, 2]).to_dense(), cut={}, left={"first": ""}
)
image("upsample_bicubic2d", lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"))
image("upsample_bilinear2d, antialiased", lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True))
image("upsample_bicubic2d, antialiased", lambda x: F.interpolate(x, scale_factor=0.5, mode="bicubic", antialias=True))
image("pooling to one", lambda x: F.adaptive_avg_pool2d(x, 1))
add(
    "pooling without a batch",
    lambda: Chain(nn.Conv2d(3, 16, 3), lambda x: F.max_pool2d(x, 2), nn.Conv2d(16, 5, 1)),
    numbers(3, 8, 8),
    FIRST,
)
tokens("pooling over channels", lambda x: F.avg_pool1d(x, 2), reads=8, **stays("it is space (`avg_pool"))
image("grid_sample", lambda x: F.grid_sample(x, torch.linspace(-0.9, 0.7, 36).view(2, 3, 3, 2), align_corners=False))
volume(
    "grid_sample in three dimensions",
    lambda x: F.grid_sample(x, torch.linspace(-0.9, 0.7, 48).view(2, 2, 2, 2, 3), align_corners=False),
)
tokens(
    "a learned grid",
    lambda x: F.grid_sample(
        torch.arange(32.0).view(2, 1, 4, 4).to(x.dtype), x.unflatten(-1, (8, 2)), align_corners=False
    )[:, 0].repeat(1, 1, 2),
    **stays("it is space (`grid_sampler_2d`"),
)

image("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), reads=4, cut={"first.weight": 0, "last.weight": 1})
image("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), reads=64)
add(
    "pixel_shuffle over what a linear layer made",
    lambda: Chain(nn.Linear(6, 16), lambda x: F.pixel_shuffle(x[..., None], 2)[:, 0], nn.Linear(2, 5)),
    numbers(2, 4, 6),
    {},
    left={"first": "it is space (`pixel_shuffle`"},
)
tokens(
    "pixel_unshuffle over channels",
    lambda x: F.pixel_unshuffle(x, 2).flatten(-2),
    **stays("it is space (`pixel_unshuffle`"),
)
image("channel_shuffle", lambda x: F.channel_shuffle(x, 2))
image("channel_shuffle in four groups", lambda x: F.channel_shuffle(x, 4))
image("native_channel_shuffle", lambda x: F.native_channel_shuffle(x, 2))


# -- recurrent layers


class Recurrent(nn.Module):
    def __init__(self, layer: nn.RNNBase, reads: int, *, read_state: bool = False, learned_state: bool = False) -> None:
        super().__init__()
        self.first, self.cell, self.last = nn.Linear(6, 16), layer, nn.Linear(reads, 5)
        self.read_state = read_state
        self.state = nn.Parameter(torch.randn(layer.num_layers, 1, layer.hidden_size)) if learned_state else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.state is not None:
            out, state = self.cell(x, self.state.expand(-1, x.shape[1], -1).contiguous())
        else:
            out, state = self.cell(x)
        if self.read_state:
            state = state[0] if isinstance(state, tuple) else state
            return self.last(state[0])
        return self.last(out)


CELL = {
    "first.weight": 0,
    "cell.weight_ih_l0": 1,
    "cell.weight_ih_l0#2": 0,
    "cell.weight_hh_l0": 0,
    "cell.weight_hh_l0#2": 1,
    "last.weight": 1,
}
KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": lambda *sizes, **more: nn.RNN(*sizes, nonlinearity="relu", **more),
}
for name, cell in KINDS.items():
    add(name, lambda f=cell: Recurrent(f(16, 12), 12), numbers(5, 2, 6), {**CELL, "cell.bias_hh_l0": 0})
add("gru without biases", lambda: Recurrent(nn.GRU(16, 12, bias=False), 12), numbers(5, 2, 6), CELL)
add(
    "lstm of two layers",
    lambda: Recurrent(nn.LSTM(16, 12, 2), 12),
    numbers(5, 2, 6),
    {**CELL, "cell.weight_ih_l1": 0, "cell.weight_ih_l1#2": 1},
)
add(
    "gru both ways",
    lambda: Recurrent(nn.GRU(16, 12, bidirectional=True), 24),
    numbers(5, 2, 6),
    {**CELL, "cell.weight_hh_l0_reverse": 1},
)
add(
    "lstm of two layers both ways",
    lambda: Recurrent(nn.LSTM(16, 12, 2, bidirectional=True), 24),
    numbers(5, 2, 6),
    {**CELL, "cell.weight_ih_l1": 1},
)
add("the last state of an lstm", lambda: Recurrent(nn.LSTM(16, 12), 12, read_state=True), numbers(5, 2, 6), CELL)
add(
    "gru from a learned state",
    lambda: Recurrent(nn.GRU(16, 12), 12, learned_state=True),
    numbers(5, 2, 6),
    {**CELL, "state": 2},
)
add(
    "gru of four layers from a learned state",
    lambda: Recurrent(nn.GRU(16, 12, 4), 12, learned_state=True),
    numbers(5, 2, 6),
    {**CELL, "state": 2},
)
add(
    "lstm with a projection",
    lambda: Recurrent(nn.LSTM(16, 12, proj_size=8), 8),
    numbers(5, 2, 6),
    {"first.weight": 0, "cell.weight_ih_l0": 0, "cell.weight_hr_l0": 0, "cell.weight_hr_l0#2": 1, "last.weight": 1},
)


# -- reductions

REDUCED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": lambda x, d: x.sum(d, keepdim=True),
    "sum without the axis": lambda x, d: x.sum(d).unsqueeze(d),
    "mean": lambda x, d: x.mean(d, keepdim=True),
    "amax": lambda x, d: x.amax(d, keepdim=True),
    "amin": lambda x, d: x.amin(d).unsqueeze(d),
    "var": lambda x, d: x.var(d, keepdim=True),
    "std": lambda x, d: x.std(d, keepdim=True),
    "var_mean": lambda x, d: torch.stack(torch.var_mean(x, d, keepdim=True)).sum(0),
    "std_mean": lambda x, d: torch.stack(torch.std_mean(x, d, keepdim=True)).sum(0),
    "norm": lambda x, d: aten.norm.ScalarOpt_dim(x, 2, [d], True),
    "linalg_vector_norm": lambda x, d: torch.linalg.vector_norm(x, 2, d, keepdim=True),
    "logsumexp": lambda x, d: x.logsumexp(d, keepdim=True),
    "prod": lambda x, d: x.prod(d, keepdim=True),
    "softmax": lambda x, d: (x * x.softmax(d)).sum(d, keepdim=True),
    "log_softmax": lambda x, d: (x * x.log_softmax(d)).sum(d, keepdim=True),
    "_safe_softmax": lambda x, d: (x * torch._safe_softmax(x, d)).sum(d, keepdim=True),
    "cumsum": lambda x, d: x.cumsum(d).mean(d, keepdim=True),
    "cumprod": lambda x, d: x.cumprod(d).mean(d, keepdim=True),
    "logcumsumexp": lambda x, d: x.logcumsumexp(d).mean(d, keepdim=True),
    "nansum": lambda x, d: x.nansum(d, keepdim=True),
    "nanmean": lambda x, d: x.nanmean(d, keepdim=True),
    "any": lambda x, d: (x > 1).any(d, keepdim=True) * x.mean(d, keepdim=True),
    "all": lambda x, d: (x > -1).all(d, keepdim=True) * x.mean(d, keepdim=True),
}
for name, reduced in REDUCED.items():
    if not name.startswith("nan") and name not in ("any", "all"):
        tokens(f"{name} over channels", lambda x, f=reduced: f(x, -1), 1, {"first.weight": 0}, moved=name != "amax")
    image(f"{name} over space", lambda x, f=reduced: f(x, 2))
tokens("sum of all", lambda x: x.sum()[None], reads=1, cut={"first.weight": 0})
tokens("max of all", lambda x: x.max()[None], reads=1, cut={"first.weight": 0}, moved=False)
tokens("median of all", lambda x: x.median()[None], reads=1, **stays("`median`"))
tokens("mean over two axes", lambda x: x.mean((1, 2))[:, None], reads=1, cut={"first.weight": 0})
tokens("argmax of all", lambda x: x.argmax()[None] + 0.5, reads=1, cut={}, left={})


# -- shapes

tokens("flatten to one", lambda x: x.flatten(1), reads=64)
image("flatten channels and space", lambda x: x.flatten(1)[..., None, None], reads=1024)
tokens("reshape to heads and back", lambda x: x.reshape(2, 4, -1, 4).softmax(2).reshape(x.shape))
tokens("heads and width swap", lambda x: x.unflatten(-1, (-1, 4)).mT.flatten(-2))
tokens("ravel", lambda x: x.ravel()[None], reads=128)
tokens("reshape_as", lambda x: x.flatten().reshape_as(x))
tokens("a view of another type", lambda x: x.view(x.dtype))
tokens("reshape of what is not contiguous", lambda x: x.mT.reshape(2, -1).unflatten(1, (-1, 4)).mT)
tokens(
    "_reshape_alias", lambda x: aten._reshape_alias(x, [8, x.shape[2]], [x.shape[2], 1]), **stays("`_reshape_alias`")
)
tokens("squeeze and unsqueeze", lambda x: x[:1].squeeze(0).unsqueeze(1))
tokens("squeeze in place", lambda x: x[:1].clone().squeeze_(0), cut={}, left={})
tokens("a literal size", lambda x: x.reshape(2, 4, 16), **stays("literal in the code (`reshape`"))
tokens("space is split off channels", lambda x: x.reshape(2, 8, 8), reads=8, **stays("`reshape`"))
add(
    "two sizes that divide differently",
    lambda: Chain(
        nn.Linear(6, 24), lambda x: x.unflatten(-1, (6, -1)).sum(-1) + x.unflatten(-1, (-1, 6)).sum(-2), nn.Linear(6, 5)
    ),
    numbers(2, 4, 6),
    {},
    left={},
)
add(
    "12 of 64 onto 24 of 32",
    lambda: Chain(
        nn.Linear(6, 64),
        lambda x: x.unflatten(-1, (4, -1)).softmax(-1).flatten(-2).unflatten(-1, (8, -1)).softmax(-1).flatten(-2),
        nn.Linear(64, 5),
    ),
    numbers(2, 4, 6),
    {"first.weight": 0, "last.weight": 1},
)
tokens("as_strided of the same shape", lambda x: x.as_strided(x.shape, x.stride()), **stays("stride"))
tokens("as_strided of another shape", lambda x: x.as_strided((2, 2, 16), (64, 32, 1)), **stays("`as_strided`"))

tokens("permute", lambda x: x.permute(2, 0, 1).exp().permute(1, 2, 0))
tokens("transpose", lambda x: x.transpose(0, 2).exp().transpose(-3, 2))
tokens("swapaxes", lambda x: x.swapaxes(0, 2).exp().swapaxes(2, 0))
tokens(
    "a matrix, turned",
    PerChannel(lambda x, s: F.linear(x, s.t()), 16, 12),
    reads=12,
    cut={**FIRST, "op.scale": 0, "op.scale#2": 1},
    groups=("first", "op"),
)
tokens(
    "a matrix, permuted",
    PerChannel(lambda x, s: F.linear(x, s.permute(1, 0)), 16, 12),
    reads=12,
    cut={**FIRST, "op.scale": 0, "op.scale#2": 1},
    groups=("first", "op"),
)
tokens(
    "numpy_T",
    PerChannel(lambda x, s: F.linear(x, s.T), 16, 12),
    reads=12,
    cut={**FIRST, "op.scale": 0, "op.scale#2": 1},
    groups=("first", "op"),
)
tokens("a vector on the right", PerChannel(lambda x, s: (x @ s)[..., None]), reads=1, cut={**ALONE, "op.scale": 0})
tokens("a vector on the left", PerChannel(lambda x, s: (s @ x.mT)[..., None]), reads=1, cut={**ALONE, "op.scale": 0})
tokens("mT", PerChannel(lambda x, s: x @ s.mT, 2, 12, 16), reads=12, cut={**FIRST, "op.scale": 2, "op.scale#2": 1})
tokens(
    "adjoint",
    PerChannel(lambda x, s: x @ s.adjoint(), 2, 12, 16),
    reads=12,
    cut={**FIRST, "op.scale": 2, "op.scale#2": 1},
)
tokens("transpose in place", lambda x: x.clone().transpose_(1, 2).mT, cut={}, left={})

tokens("expand", PerChannel(lambda x, s: x * s.expand(x.shape)), cut=SCALE)
tokens("expand in front", PerChannel(lambda x, s: x * s.expand(2, 4, -1)), cut=SCALE)
tokens("expand one channel", lambda x: x + x[..., :1].expand(-1, -1, x.shape[-1]), cut={}, left={})
tokens("expand a mean", lambda x: x + x.mean(-1, keepdim=True).expand(-1, -1, x.shape[-1]))
tokens(
    "expand to a literal size",
    lambda x: x + x.mean(-1, keepdim=True).expand(-1, -1, 16),
    **stays("literal in the code (`expand`"),
)
tokens("repeat channels", lambda x: x.repeat(1, 1, 2), reads=32)
tokens("tile", lambda x: x.tile(2), reads=32)
tokens("repeat_interleave channels", lambda x: x.repeat_interleave(2, -1), reads=32)
tokens("repeat_interleave space", lambda x: x.repeat_interleave(3, 1))
tokens("repeat_interleave by a tensor", lambda x: x.repeat_interleave(torch.tensor([1, 0, 2, 1]), 1), cut={}, left={})
tokens("repeat_interleave of all", lambda x: x.repeat_interleave(2)[None], reads=256, cut={}, left={})


class Parallel(nn.Module):
    """Two layers side by side, then a function of both."""

    def __init__(
        self, function: Callable[[Tensor, Tensor], Tensor], reads: int, widths: tuple[int, int] = (16, 16)
    ) -> None:
        super().__init__()
        self.left, self.right = (nn.Conv1d(3, width, 1) for width in widths)
        self.function, self.last = function, nn.Conv1d(reads, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.left(x), self.right(x)))


SIDES = {"left.weight": 0, "right.weight": 0, "last.weight": 1}
for name, joined in {"cat": torch.cat, "concat": torch.concat, "concatenate": torch.concatenate}.items():
    add(
        f"{name} of channels",
        lambda f=joined: Parallel(lambda a, b: f([a, b], 1), 24, (16, 8)),
        numbers(2, 3, 6),
        SIDES,
        groups=("left", "right"),
    )
add("cat of space", lambda: Parallel(lambda a, b: torch.cat([a, b], -1), 16), numbers(2, 3, 6), SIDES)
add("cat of the same twice", lambda: Parallel(lambda a, b: torch.cat([a, b, a.exp()], 1), 48), numbers(2, 3, 6), SIDES)
add(
    "cat with nothing",
    lambda: Parallel(lambda a, b: torch.cat([torch.zeros(0), a + b], 1), 16),
    numbers(2, 3, 6),
    SIDES,
)
add(
    "cat with an input",
    lambda: Chain(nn.Conv1d(3, 16, 1), lambda x: torch.cat([x, torch.ones(2, 2, 6)], 1), nn.Conv1d(18, 5, 1)),
    numbers(2, 3, 6),
    {"first.weight": 0},
)
add("stack", lambda: Parallel(lambda a, b: torch.stack([a, b]).amax(0), 16), numbers(2, 3, 6), SIDES)
add(
    "stack behind channels",
    lambda: Parallel(lambda a, b: torch.stack([a, b], 2).flatten(1, 2), 32),
    numbers(2, 3, 6),
    SIDES,
)
add(
    "stack in front of channels",
    lambda: Parallel(lambda a, b: torch.stack([a, b], 1).flatten(1, 2), 32),
    numbers(2, 3, 6),
    SIDES,
)

TWO_PARTS = {"first.weight": 0, "last.weight": 1}


class Sliced(nn.Module):
    """Code that knows where to cut: the bounds are attributes, and follow."""

    def __init__(self, function: Callable[[Tensor, int], Tensor], reads: int = 16) -> None:
        super().__init__()
        self.first, self.last, self.at = nn.Linear(6, 16), nn.Linear(reads, 5), 8
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x), self.at))


def sliced(
    name: str,
    function: Callable[[Tensor, int], Tensor],
    reads: int = 16,
    cut: Mapping[str, int] = TWO_PARTS,
    **more: Any,
) -> None:
    add(name, lambda: Sliced(function, reads), numbers(2, 4, 6), cut, **more)


sliced("halves swap", lambda x, n: torch.cat([x[..., n:], x[..., :n]], -1))
sliced("one half gates the other", lambda x, n: x[..., :n] * x[..., n:].sigmoid(), 8)
sliced("narrow", lambda x, n: x.narrow(-1, 0, n) + x.narrow(-1, n, n).exp(), 8)
sliced("narrow from the end", lambda x, n: x.narrow(-1, 0, n) + x.narrow(-1, -8, n).exp(), 8, {}, left={})
sliced("split by attribute", lambda x, n: torch.add(*x.split(n, -1)), 8)
sliced("split into listed parts", lambda x, n: torch.cat(x.split([n, n], -1)[::-1], -1))
sliced("split_with_sizes", lambda x, n: torch.cat(x.split_with_sizes([n, n], -1)[::-1], -1))
tokens("a literal slice", lambda x: torch.cat([x[..., 8:], x[..., :8].exp()], -1), cut={}, left={})
tokens(
    "a slice of half the width",
    lambda x: x[..., : x.shape[-1] // 2] + x[..., x.shape[-1] // 2 :].exp(),
    reads=8,
    cut=TWO_PARTS,
)
tokens("a slice of space", lambda x: x[:, 1:3])
tokens("a slice from the end", lambda x: x[:, -2:])
tokens("a slice of all", lambda x: x[:, :, :100])
tokens("narrow over space", lambda x: x.narrow(1, 1, 2))
tokens("every second channel", lambda x: x[..., ::2] + x[..., 1::2].exp(), reads=8, cut=TWO_PARTS)
tokens("every third channel", lambda x: x[..., ::3], reads=6, **stays("`slice`"))
tokens("every second position", lambda x: x[:, ::2])
tokens("every third position", lambda x: x[:, ::3])
tokens("every fourth channel", lambda x: x[..., ::4] * x.mean(-1, keepdim=True), reads=4, cut=TWO_PARTS)
tokens("one channel by a slice", lambda x: x[..., :1] + x[..., 15:], reads=1, cut={}, left={"first": ""})
tokens("one channel by its number", lambda x: x[..., 3:4] + x.mean(-1, keepdim=True), reads=1, cut={}, left={})
tokens("chunk", lambda x: torch.mul(*x.chunk(2, -1)), reads=8, cut=TWO_PARTS)
tokens("chunk into four", lambda x: torch.cat(x.chunk(4, -1)[::-1], -1), cut=TWO_PARTS)
tokens("unsafe_chunk", lambda x: torch.mul(*x.unsafe_chunk(2, -1)), reads=8, cut=TWO_PARTS)
tokens("unsafe_split", lambda x: torch.mul(*x.unsafe_split(x.shape[-1] // 2, -1)), reads=8, cut=TWO_PARTS)
tokens(
    "unsafe_split_with_sizes",
    lambda x: torch.mul(*x.unsafe_split_with_sizes([x.shape[-1] // 2] * 2, -1)),
    reads=8,
    cut={},
    left={},
)
tokens("chunk of space", lambda x: torch.mul(*x.chunk(2, 1)))
tokens("chunk into unequal pieces", lambda x: torch.cat(x.chunk(3, -1)[::-1], -1), **stays("unequal pieces"))
image("chunk of space into unequal pieces", lambda x: torch.cat(x.chunk(3, 2)[::-1], 2))
tokens("chunk into one", lambda x: x.chunk(1, -1)[0])
tokens("chunk into single channels", lambda x: sum(x.chunk(16, -1)), reads=1, **stays("the number of pieces stays"))
tokens("tensor_split", lambda x: torch.mul(*x.tensor_split(2, -1)), reads=8, **stays("`tensor_split`"))
tokens("select over space", lambda x: x[:, 2])
tokens("select a channel", lambda x: x[..., 3], reads=4, **stays("`select`"))
image("select behind channels", lambda x: x[..., 2][..., None])
tokens("unbind space", lambda x: x.unbind(1)[0] * x.unbind(1)[3])
tokens("unbind channels", lambda x: torch.stack(x.unbind(-1)[::2], -1), reads=8, **stays("`unbind`"))
tokens(
    "query, key and value of one layer",
    lambda x: torch.mul(*x.unflatten(-1, (2, -1)).unbind(-2)),
    reads=8,
    cut=TWO_PARTS,
)

tokens("roll space", lambda x: x.roll(1, 1))
tokens("roll channels", lambda x: x + 2 * x.roll(3, -1).exp(), cut={}, left={})
tokens("roll channels away", lambda x: x.roll(3, -1), cut={})
tokens("roll channels back", lambda x: x.roll(-3, -1), cut={})
tokens("roll all", lambda x: x.roll(3), **stays("`roll`"))
tokens("roll space twice", lambda x: x.roll((1, 1), (0, 1)))
sliced("roll by half", lambda x, n: x.roll(n, -1))
sliced("roll back by half", lambda x, n: x.roll(-n, -1))
tokens("flip channels", lambda x: x.flip(-1))
tokens("flip channels onto themselves", lambda x: x + x.flip(-1).exp(), cut=TWO_PARTS)
tokens("flip space", lambda x: x.flip(0, 1))

tokens("pad channels", lambda x: F.pad(x, (2, 1)), reads=19, cut={"first.weight": 0})
tokens("pad space", lambda x: F.pad(x, (0, 0, 2, 1)))
tokens("crop channels", lambda x: F.pad(x, (-1, 0)), reads=15, **stays("cropped (`constant_pad_nd`"))
tokens("crop space", lambda x: F.pad(x, (0, 0, -1, 2)))
tokens(
    "pad a shortcut",
    PerChannel(lambda x, s: x + F.pad(x[..., : x.shape[-1] // 2], (x.shape[-1] // 4, x.shape[-1] // 4))),
    cut={},
    left={},
)
for n, (base, places) in {1: (line, 2), 2: (image, 4), 3: (volume, 6)}.items():
    for mode in ("reflect", "replicate"):
        base(f"{mode} padding, {n} axes", lambda x, m=mode, p=places: F.pad(x, (1,) * p, mode=m))
tokens(
    "reflect channels", lambda x: F.pad(x, (1, 1), mode="reflect"), reads=18, **stays("padded with its own neighbours")
)
tokens("unfold space", lambda x: x.unfold(1, 2, 1).sum(-1))
tokens("unfold channels", lambda x: x.unfold(2, 2, 2).sum(-1), reads=8, **stays("windows are laid over it (`unfold`"))
tokens("an operator without a rule", lambda x: torch.linalg.qr(x)[0], reads=4, **stays("no rule for this operator"))


# -- axes that stay, though something that can be cut runs along them

WEIGHED: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "parts of a number": (lambda x: torch.view_as_real(torch.complex(x, x.sin())), 2),
    "the largest": (lambda x: x.topk(4, 1)[0].mT, 4),
    "the sorted": (lambda x: x.sort(1)[0].mT, 4),
    "every second place": (lambda x: x[:, ::2].mT, 2),
    "windows": (lambda x: x.unfold(1, 2, 1).sum(1), 2),
    "mirrored places": (lambda x: F.pad(x.mT, (2, 2), mode="reflect"), 8),
    "stacked": (lambda x: torch.stack([x, x.exp(), x.sin(), x.cos()], -1), 4),
    "picked places": (lambda x: x[:, torch.tensor([0, 3, 1, 1])].mT, 4),
    "places of a mask": (lambda x: x[:, torch.tensor([True, True, False, False])].mT, 2),
    "padded places": (lambda x: F.pad(x.mT, (1, 3)), 8),
    "cropped places": (lambda x: F.pad(x.mT, (-1, 5)), 8),
    "statistics": (lambda x: torch.stack(torch.var_mean(x, 1), -1), 2),
}
for name, (op, length) in WEIGHED.items():
    tokens(f"{name}, weighed", PerChannel(lambda x, s, f=op: (f(x) * s).sum(-1), length))
add(
    "patches, weighed",
    lambda: Chain(Conv(2, 3, 16, 3), PerChannel(lambda x, s: (F.unfold(x, 2) * s).sum(-1), 49), nn.Linear(64, 5)),
    numbers(2, 3, 8, 8),
    FIRST,
)
add(
    "folded places, weighed",
    lambda: Chain(
        nn.Linear(6, 64),
        PerChannel(lambda x, s: (F.fold(x.mT, (4, 4), 2, stride=2) * s).sum(-1), 4),
        Conv(1, 16, 5, 1),
    ),
    numbers(2, 4, 6),
    {"first.weight": 0, "last.weight": 1},
)


class Shortcut(nn.Module):
    """The result is added to the input: its channels stay, and what they were split from has to stay with them."""

    def __init__(self, width: int, op: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.norm, self.last, self.op = nn.Linear(6, width), nn.LayerNorm(width), nn.Linear(6, 5), op

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.op(self.norm(self.first(x))))


SPLIT: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "glu": (12, F.glu),
    "pairs": (12, lambda x: torch.view_as_complex(x.unflatten(-1, (6, -1)).contiguous()).abs()),
    "neighbours": (12, lambda x: x[..., ::2] + x[..., 1::2].exp()),
    "chunks": (24, lambda x: sum(x.chunk(4, -1))),
    "patches": (24, lambda x: F.fold(x.mT, (4, 4), 2, stride=2).amax(-1).mT),
    "pixels": (24, lambda x: F.pixel_shuffle(x.mT[..., None], 2).flatten(2)[..., :4].mT),
    "shuffled": (6, lambda x: F.channel_shuffle(x.mT[..., None], 2)[..., 0].mT),
}
for name, (width, op) in SPLIT.items():
    add(f"{name} onto the input", lambda w=width, f=op: Shortcut(w, f), numbers(2, 4, 6), {}, left={"first": ""})


class ReadTwice(nn.Module):
    """A function of the input and of parameters, one of which is read by a mean as well, along the axis in question."""

    def __init__(self, function: Callable[..., Tensor], reads: int, **parameters: tuple[int, ...]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 16), nn.Linear(reads, 5), function
        for name, shape in parameters.items():
            setattr(self, name, nn.Parameter(torch.randn(shape)))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self, self.first(x)))


def read_twice(
    name: str, cut: Mapping[str, int], function: Callable[..., Tensor], reads: int = 16, **shapes: tuple[int, ...]
) -> None:
    add(name, lambda: ReadTwice(function, reads, **shapes), numbers(2, 4, 6), cut)


ADDED = {**FIRST, "rows": 1}
read_twice(
    "rows that are added by number",
    ADDED,
    lambda m, x: x.index_add(1, torch.arange(4), m.rows.expand(2, -1, -1)) + m.rows.mean(0),
    rows=(4, 16),
)
read_twice(
    "rows that are scattered",
    ADDED,
    lambda m, x: (
        x.scatter(1, torch.arange(4)[:, None].expand(2, -1, x.shape[2]), m.rows.expand(2, -1, -1)) + m.rows.mean(0)
    ),
    rows=(4, 16),
)
read_twice("rows that are written by a mask", FIRST, lambda m, x: written(x, m.rows) + m.rows.mean(), rows=(4,))
read_twice("rows that are looked up", ADDED, lambda m, x: x + m.rows[torch.arange(4)] + m.rows.mean(0), rows=(8, 16))
read_twice(
    "rows that are selected",
    ADDED,
    lambda m, x: x + m.rows.index_select(0, torch.arange(4)) + m.rows.mean(0),
    rows=(8, 16),
)
read_twice(
    "rows that are gathered",
    ADDED,
    lambda m, x: x + m.rows.gather(0, torch.arange(4)[:, None].expand(-1, x.shape[2])) + m.rows.mean(0),
    rows=(8, 16),
)


def written(x: Tensor, values: Tensor) -> Tensor:
    """Four values to four places, the same for every channel."""
    y = x.mean(-1)[0].clone()
    y[torch.tensor([True, True, True, True])] = values
    return x + y[:, None]


def dealt(m: Any, x: Tensor) -> Tensor:
    """Learned tokens go to two experts; tokens, experts and results are read by other means, too."""
    tokens, weights = (each.bfloat16() if x.dtype == torch.bfloat16 else each for each in (m.tokens, m.experts))
    out = torch._grouped_mm(tokens, weights, offs=torch.tensor([3, 8], dtype=torch.int32))
    return x.mean() + (out * m.mix[:, None]).sum(0) + m.tokens.mean() + m.experts.mean()


read_twice(
    "tokens that are dealt out",
    {"first.weight": 0, "tokens": 1, "last.weight": 1},
    dealt,
    tokens=(8, 16),
    experts=(2, 16, 16),
    mix=(8,),
)


class Mixed(nn.Module):
    """All layers' last states, weighed; the first states are learned, and read by a mean as well."""

    def __init__(self, gates: bool) -> None:
        super().__init__()
        self.gates = gates
        self.cell, self.last = nn.LSTM(6, 6 if gates else 12, 1 if gates else 4), nn.Linear(6 if gates else 12, 5)
        self.mix, self.state = nn.Parameter(torch.randn(4, 1, 1)), nn.Parameter(torch.randn(4, 1, 12))

    def forward(self, x: Tensor) -> Tensor:
        if self.gates:  # the width stays because of the input, and every gate is read by a mean
            return self.last(x + self.cell(x)[0] + self.cell.weight_hh_l0.mean(0))
        state = self.state.expand(-1, x.shape[1], -1).contiguous()
        _, (hidden, inner) = self.cell(x, (state, state.exp()))
        return self.last((hidden * self.mix).sum(0) + inner[0] + self.state.mean(0))


add(
    "states of four layers",
    lambda: Mixed(False),
    numbers(5, 2, 6),
    {"cell.weight_hh_l0": 1, "state": 2, "last.weight": 1},
)
add("gates", lambda: Mixed(True), numbers(5, 2, 6), {}, left={"cell": ""})

tokens(
    "diff over channels, beside another reader",
    lambda x: x.diff(dim=-1).mean(-1, keepdim=True) * x.mean(-1, keepdim=True),
    1,
    {},
)
tokens(
    "scatter of a part",
    lambda x: x.scatter(1, which()[None, :, None].expand(2, 3, 8), 0.5),
    **stays("part of it is indexed (`scatter`"),
)
tokens("narrow to all", lambda x: x.narrow(1, 0, 4))
tokens(
    "an empty statistic",
    PerChannel(lambda x, s: x + torch.native_batch_norm(x, s, None, s, s.exp(), False, 0.1, 1e-5)[1].sum(), 4),
)
add(
    "space to depth first",
    lambda: Chain(nn.PixelUnshuffle(2), nn.Conv2d(12, 16, 1), nn.Conv2d(16, 5, 1)),
    numbers(2, 3, 8, 8),
    {"op.weight": 0, "last.weight": 1},
)


class Repeated(nn.Module):
    """The input, repeated as often as an attribute says, which can become less."""

    def __init__(self, function: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.function, self.times, self.last = function, 8, nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(x, self.times))


add("repeat by attribute", lambda: Repeated(lambda x, n: x.repeat(1, 1, n)), numbers(2, 4, 6), {"last.weight": 1})
add(
    "repeat_interleave by attribute",
    lambda: Repeated(lambda x, n: x.repeat_interleave(n, -1)),
    numbers(2, 4, 6),
    {"last.weight": 1},
)


class Weakest(nn.Module):
    """The channel that matters least is read by its number."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 16), nn.Linear(16, 5), function
        with torch.no_grad():
            self.first.weight[3] *= 0.01

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x * self.function(x))


add("a slice of the weakest channel", lambda: Weakest(lambda x: x[..., 3:4]), numbers(2, 4, 6), {})
add("the weakest of a list", lambda: Weakest(lambda x: x.split([3, 1, 12], -1)[1]), numbers(2, 4, 6), {})


# -- sizes that are easily overlooked

tokens("kthvalue without the axis", lambda x: x.kthvalue(2, 1)[0][:, None] * x.mean(-1, keepdim=True))
tokens("mode without the axis", lambda x: x.mode(1)[0][:, None] * x.mean(-1, keepdim=True))
tokens("repeat space", lambda x: x.repeat(1, 3, 1))
tokens("repeat in front", lambda x: x.repeat(3, 1, 1, 1))
tokens("repeat by the batch", PerChannel(lambda x, s: x + s.repeat(x.shape[0], 1, 1)), cut=SCALE)
tokens("as_strided of a literal shape", lambda x: x.as_strided((2, 4, 16), (64, 16, 1)), **stays("`as_strided`"))
tokens("empty_strided", lambda x: x + torch.empty_strided((16,), (1,)).fill_(0.1), **stays("`empty_strided`"))
tokens("new_empty_strided", lambda x: x + x.new_empty_strided((16,), (1,)).fill_(0.1), **stays("`new_empty_strided`"))
tokens("empty_permuted", lambda x: x + torch.empty_permuted((4, 16), (1, 0)).fill_(0.1), **stays("`empty_permuted`"))
tokens("split_copy of a literal size", lambda x: torch.add(*torch.split_copy(x, 8, -1)), 8, {}, left={"first": ""})
tokens("unsafe split of literal sizes", lambda x: torch.add(*x.unsafe_split_with_sizes([8, 8], -1)), 8, {})
sliced("split_copy", lambda x, n: torch.add(*torch.split_copy(x, n, -1)), 8)
sliced("unsafe split by attribute", lambda x, n: torch.add(*x.unsafe_split_with_sizes([n, n], -1)), 8)
tokens(
    "native_layer_norm", lambda x: torch.native_layer_norm(x, [16], None, None, 1e-5)[0], **stays("`native_layer_norm`")
)
tokens(
    "native_group_norm",
    lambda x: torch.native_group_norm(x, None, None, 2, 4, 16, 2, 1e-5)[0],
    **stays("`native_group_norm`"),
)
tokens(
    "mkldnn_convolution",
    PerChannel(lambda x, s: aten.mkldnn_convolution(x, s, None, [0], [1], [1], 1), 4, 4, 1),
    **stays("no rule for this operator (`mkldnn_convolution`"),
)
tokens(
    "a view of a type of another size",
    lambda x: torch.view_as_real(x.view(torch.complex64).exp()).sum((-1, -2))[..., None] * x.mean(-1, keepdim=True),
    reads=1,
    **stays("`view`"),
)
for name, number in {
    "numel": lambda x: x.numel(),
    "nelement": lambda x: x.nelement(),
    "numel of a shape": lambda x: x.shape.numel(),
    "len": lambda x: len(x[0, 0]),
    "stride": lambda x: x.stride(1),
}.items():
    tokens(f"a sum over {name}", lambda x, f=number: x.sum(-1, keepdim=True) / f(x), 1, {})


# -- what is checked

BUGS = {
    "a sum over numel of a shape": "`shape.numel()` is an int without its origin",
}


def example(case: Case) -> tuple[nn.Module, Any]:
    """The model, with constants that differ by channel, and its inputs."""
    torch.manual_seed(0)
    model = case.build().eval()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point() and tensor.numel() > 1 and tensor.min() == tensor.max():
                tensor.add_(torch.rand_like(tensor))
    return model, case.inputs()


def check(case: Case, amount: float, strict: bool = True) -> None:
    """The plan is exact; and, if strict, cuts what it should."""
    model, inputs = example(case)
    left_alone = {item.name: item.reason for item in secateur.inspect(model, inputs).left_alone} if case.left else {}
    for layer, reason in case.left.items():
        assert reason in left_alone.get(layer, "it is not left alone") or not strict, (layer, left_alone)
    if (plan := planned(model, inputs, amount)) is None:
        assert not case.cut or not strict
        return
    proof = secateur.verify(model, plan)
    if not strict:
        return
    assert proof.moved or not case.moved
    groups = {group.name for group in plan.groups}
    assert not groups & set(case.left)
    assert not case.groups or groups == set(case.groups)
    for name, axis in case.cut.items():
        tensor = plan.tensors[name.partition("#")[0]]
        assert tensor.new_shape[axis] == round(tensor.shape[axis] * (1 - amount)), (
            name,
            tensor.shape,
            tensor.new_shape,
        )


def planned(model: nn.Module, inputs: Any, amount: float) -> secateur.Plan | None:
    """The plan; None where nothing can be cut."""
    try:
        return secateur.plan_channels(model, inputs, amount)
    except secateur.UsageError as error:
        if "Nothing in the model can be cut" not in str(error):
            raise
        return None


def operators(case: Case) -> set[str]:
    model, inputs = example(case)
    args, kwargs = as_call(inputs)
    return {call.op for call in capture(model, args, kwargs).calls}


def cases() -> list[Any]:
    marks = {name: pytest.mark.xfail(strict=True, reason=why) for name, why in BUGS.items()}
    return [pytest.param(case, id=case.name, marks=marks.get(case.name, ())) for case in CASES]


@pytest.mark.parametrize("amount", AMOUNTS)
@pytest.mark.parametrize("case", cases())
def test_the_cut_is_exact(case: Case, amount: float) -> None:
    check(case, amount)


# Taken apart before a rule sees them, except in inference mode: nothing is cut then.
COMPOSITE = frozenset("conv1d conv2d conv3d conv_transpose2d pad tile grid_sampler".split())


@pytest.mark.parametrize("case", [case for case in CASES if case.name not in BUGS], ids=str)
def test_the_cut_is_exact_where_operators_arrive_whole(case: Case) -> None:
    with torch.inference_mode():
        check(case, 0.5, strict=not operators(case) & COMPOSITE)


# What torch's own counter does not know.
def attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


FLOPS: dict[Any, Callable[..., int]] = {
    aten.mv: lambda a, b, **_: 2 * prod(a),
    aten.addmv: lambda c, a, b, **_: 2 * prod(a),
    aten.dot: lambda a, b, **_: 2 * prod(a),
    aten.vdot: lambda a, b, **_: 2 * prod(a),
    aten._grouped_mm: lambda a, b, *_, **__: 2 * prod(a) * b[-1],
    aten._scaled_dot_product_flash_attention_for_cpu: attention_flops,
}


def multiply_adds(model: nn.Module, inputs: Any) -> int:
    args, kwargs = as_call(inputs)
    counter = FlopCounterMode(display=False, custom_mapping=FLOPS)
    with counter, torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):  # whose LSTM is one operator
        model(*args, **kwargs)
    return counter.get_total_flops() // 2


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize("case", [case for case in CASES if case.cut and case.name not in BUGS], ids=str)
def test_multiply_adds_are_those_that_torch_counts(case: Case) -> None:
    model, inputs = example(case)
    plan = planned(model, inputs, 0.5)
    assert plan is not None
    before = multiply_adds(model, inputs)
    cut(model, plan)
    assert plan.macs == (before, multiply_adds(model, inputs))


# Layers that read the channels of `first`, and the parameter they read them with.
READERS = {
    "relu in place": "last.weight",
    "a map over space": "last.weight",
    "convolution": "op.weight",
    "transposed convolution": "op.weight",
    "linear": "op.scale",
    "a matrix on the right": "op.scale",
    "a matrix on the left": "op.scale",
    "a matrix that is cloned": "op.scale",
    "a matrix, turned": "op.scale",
    "numpy_T": "op.scale",
    "a vector on the right": "op.scale",
    "addmm of channels": "op.weight",
    "einsum with a matrix": "op.scale",
    "grouped matmul": "up",
    "lstm": "cell.weight_ih_l0",
    "gru both ways": "cell.weight_ih_l0_reverse",
}


@pytest.mark.parametrize("name", READERS)
def test_channels_are_ranked_by_the_layer_that_makes_them(name: str) -> None:
    """What reads them has no say."""
    model, inputs = example(next(case for case in CASES if case.name == name))
    before = secateur.plan_channels(model, inputs, 0.5).tensors["first.weight"]
    reader = model.get_parameter(READERS[name])
    with torch.no_grad():
        reader.copy_(100 * torch.randn_like(reader) ** 3)
    assert secateur.plan_channels(model, inputs, 0.5).tensors["first.weight"] == before


def test_a_recurrent_unit_is_ranked_by_its_rows() -> None:
    model, inputs = example(next(case for case in CASES if case.name == "rnn_tanh"))
    rows = sum(model.get_parameter(f"cell.weight_{side}_l0").detach().abs().sum(1) for side in ("ih", "hh"))
    kept = secateur.plan_channels(model, inputs, 0.5, keep=["first"]).tensors["cell.weight_hh_l0"].kept[1]
    assert set(kept.tolist()) == set(rows.topk(6).indices.tolist())


def test_an_embedding_is_left_alone_because_of_its_channels_not_its_rows() -> None:
    (item,) = secateur.inspect(nn.Sequential(nn.Embedding(8, 16)), IDS).left_alone
    assert item.reason == "the model's output keeps its shape"


@pytest.mark.parametrize("name", ["scaled_dot_product_attention", "attention by hand"])
def test_heads_are_called_heads(name: str) -> None:
    model, inputs = example(next(case for case in CASES if case.name == name))
    assert {group.kind for group in secateur.inspect(model, inputs).groups} == {"heads"}


@pytest.mark.parametrize("case", [case for case in CASES if case.name in ("einsum", "einsum with a matrix")], ids=str)
def test_multiply_adds_of_a_whole_einsum(case: Case) -> None:
    model, inputs = example(case)
    with torch.inference_mode():
        plan = planned(model, inputs, 0.5)
    assert plan is not None
    assert plan.macs[0] == multiply_adds(model, inputs)


UNREACHED = {
    *"_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention".split(),  # on CUDA only
    *"_scaled_dot_product_cudnn_attention cudnn_batch_norm miopen_batch_norm".split(),
    "convolution_overrideable",  # for devices that come as an extension
    *"_assert_scalar sym_size".split(),  # of symbolic sizes, in a compiler only
    "conj",  # arrives as _conj
    "_adaptive_avg_pool1d",  # no such operator; the names are made from kinds and numbers of axes
    *"upsample_linear2d upsample_linear3d upsample_bilinear1d upsample_bilinear3d".split(),
    *"upsample_bicubic1d upsample_bicubic3d upsample_trilinear1d upsample_trilinear2d".split(),
}


def test_every_rule_is_reached_by_a_case() -> None:
    reached: set[str] = set()
    for case in CASES:
        reached |= operators(case)
        with torch.inference_mode():
            reached |= operators(case)
    assert set(RULES) - reached - {op.rstrip("_") for op in reached} == UNREACHED
