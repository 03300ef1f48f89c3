"""Sizes that are easily overlooked."""

from __future__ import annotations

import torch

from .registry import SCALE, PerChannel, stays, tokens
from .shape import sliced

aten = torch.ops.aten

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
