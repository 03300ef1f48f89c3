"""Lookups by index."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import ALONE, FIRST, SCALE, Chain, PerChannel, add, image, numbers, stays, tokens

aten = torch.ops.aten

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
tokens("index by what is not zero", lambda x: x[:, (torch.arange(4) % 2 == 0).nonzero().squeeze(1)])
tokens(
    "nonzero of channels",
    lambda x: x + (x > 0).nonzero().to(x.dtype).mean(),
    **stays("its values are looked at (`nonzero`"),
)
tokens(
    "a map of what is not zero, by its coordinates",
    PerChannel(lambda x, s: x + torch.ones(2, 2).nonzero().to(s.dtype) @ s, 2, 16),
    cut={**FIRST, "op.scale": 1},
    groups=("first",),
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
    "max with its place": lambda x, d: sum(x.max(d, keepdim=True)),
    "min with its place": lambda x, d: sum(x.min(d)).unsqueeze(d),
}
tokens(
    "max of what was looked up by its place, seen another way",
    lambda x: x.gather(-1, x.max(-1)[1].unsqueeze(-1)),
    1,
    {},
    left={"first": ""},
)
tokens("max over channels, and no place", lambda x: x.max(-1, keepdim=True)[0] * x, moved=False)
tokens(
    "max of what was looked up by its place",
    lambda x: x.gather(-1, x.max(-1, keepdim=True)[1]),
    1,
    {},
    left={"first": ""},
)
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


def written_nowhere(x: Tensor) -> Tensor:
    """As code that writes where a mask says, when the mask says nowhere."""
    nowhere = torch.zeros(0, dtype=torch.long)
    x = x.clone()
    x[nowhere, nowhere] = 0.0
    return torch.cat([x, x[:, nowhere]], 1)


tokens("an index without entries", written_nowhere)
