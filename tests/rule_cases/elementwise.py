"""Operators that treat every number alike."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .registry import FIRST, SCALE, PerChannel, image, stays, tokens

aten = torch.ops.aten

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
