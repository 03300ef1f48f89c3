"""Choices by rank: experts, their router, and every way to send tokens to them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import add, numbers, stays, tokens

Dealing = Callable[["Mixture", Tensor, Tensor, Tensor], Tensor]


class Mixture(nn.Module):
    """Eight experts, two for each token; `deal` sends the tokens to those that were chosen and adds up the results."""

    def __init__(self, deal: Dealing, experts: int = 8) -> None:
        super().__init__()
        self.experts, self.groups, self.deal = experts, 2, deal
        self.router = nn.Linear(8, experts)
        self.up = nn.Parameter(torch.randn(experts, 8, 16) * torch.linspace(0.5, 2, experts)[:, None, None])
        self.down = nn.Parameter(torch.randn(experts, 16, 8))
        self.scale = nn.Parameter(torch.randn(experts, 8))

    def forward(self, x: Tensor) -> Tensor:
        gates, chosen = self.router(x).softmax(-1).topk(2)
        return self.deal(self, x, gates, chosen)


def grouped(count: Callable[[Mixture, Tensor], Tensor]) -> Dealing:
    """Tokens in the order of their experts, of which one product does as many rows as `count` says."""

    def deal(self: Mixture, x: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
        sorted_by_expert, order = chosen.flatten().sort()
        ends = count(self, sorted_by_expert).cumsum(0).int()
        hidden = torch._grouped_mm(x[order // 2], self.up, offs=ends).relu()
        said = torch._grouped_mm(hidden, self.down, offs=ends) * self.scale[sorted_by_expert]
        return torch.zeros_like(x).index_add(0, order // 2, said * gates.flatten()[order, None])

    return deal


def looked_up(look_up: Callable[[Tensor, Tensor], Tensor]) -> Dealing:
    """Every token with matrices of its own."""

    def deal(self: Mixture, x: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
        up, down = look_up(self.up, chosen), look_up(self.down, chosen)
        said = torch.matmul(torch.matmul(x[:, None, None], up).relu(), down).squeeze(2) * self.scale[chosen]
        return (said * gates[..., None]).sum(1)

    return deal


def by_expert(hits: Callable[[Mixture, Tensor], Tensor]) -> Dealing:
    """One expert after the other, of those that some token was sent to; the last number stands for none."""

    def deal(self: Mixture, x: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
        out, hit = torch.zeros_like(x), hits(self, chosen).permute(2, 1, 0)
        for (expert,) in (hit.sum((1, 2)) > 0).nonzero():
            if expert == self.experts:
                continue
            place, token = torch.where(hit[expert])
            said = F.linear(F.linear(x[token], self.up[expert].T).relu(), self.down[expert].T)
            out.index_add_(0, token, said * self.scale[expert] * gates[token, place, None])
        return out

    return deal


def mixture(name: str, deal: Dealing, **more: object) -> None:
    cut = {"router.weight": 0, "router.bias": 0, "up": 0, "down": 0}
    add(name, lambda: Mixture(deal), numbers(6, 8), **{"cut": cut, **more})  # type: ignore[arg-type]


def of_experts(reason: str) -> dict[str, object]:
    return {"cut": {"up": 2}, "left": {"router": reason}}


mixture("experts, counted by histc", grouped(lambda m, e: torch.histc(e.float(), m.experts, 0, m.experts - 1)))
mixture("experts, counted by bincount", grouped(lambda m, e: e.bincount(minlength=m.experts)))
mixture("experts, counted by index_add", grouped(lambda m, e: torch.zeros(m.experts).index_add(0, e, torch.ones(12))))
mixture("experts, looked up", looked_up(lambda weight, e: weight[e]))
mixture(
    "experts, looked up by index_select", looked_up(lambda w, e: w.index_select(0, e.view(-1)).view(6, 2, *w.shape[1:]))
)
mixture("experts, one after the other", by_expert(lambda m, e: F.one_hot(e, num_classes=m.experts + 1)))
mixture(
    "experts, by masks",
    by_expert(lambda m, e: torch.zeros(6, 2, m.experts).scatter(2, e[..., None], 1.0)),
)
mixture(
    "experts, with scales of a table",
    lambda m, x, g, e: looked_up(lambda w, e: w[e])(m, x, g * F.embedding(e, m.scale).sum(-1), e),
)
mixture(
    "experts, of which weights say who has a scale",
    lambda m, x, g, e: looked_up(lambda w, e: w[e])(m, x, g, e) + m.scale[m.scale.sum(1).nonzero()[:, 0]].mean(0),
    **of_experts("its values are looked at (`nonzero`"),
)
mixture(
    "experts, with their scores once more",
    lambda m, x, g, e: looked_up(lambda w, e: w[e])(m, x, m.router(x).sigmoid().gather(1, e), e),
)
mixture(
    "experts, of which all are asked for",
    lambda m, x, g, e: looked_up(lambda w, e: w[e])(m, x, g * (e < m.experts) * (e <= m.experts) * (e != m.experts), e),
)


def in_groups(self: Mixture, x: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
    """Of two groups, one is out of the question."""
    scores = self.router(x).softmax(-1)
    grouped = scores.view(-1, self.groups, self.experts // self.groups)
    best = grouped.max(-1).values.topk(1)[1]
    allowed = torch.zeros(len(x), self.groups, dtype=torch.bool).scatter(1, best, True)
    scores = scores.masked_fill(~allowed[..., None].expand_as(grouped).reshape(-1, self.experts), 0)
    return looked_up(lambda weight, e: weight[e])(self, x, *scores.topk(2))


add(
    "experts, chosen within a group",
    lambda: Mixture(in_groups, experts=16),
    numbers(6, 8),
    {"router.weight": 0, "router.bias": 0, "up": 0, "down": 0},
)
mixture(
    "experts, counted by a literal",
    grouped(lambda m, e: torch.histc(e.float(), 8, 0, 7)),
    **of_experts("its coordinates are counted in the code (`histc`"),
)
mixture(
    "experts, counted in halves",
    grouped(lambda m, e: torch.histc(e.float(), 16, 0, 7).view(8, 2).sum(1)),
    **of_experts("named by numbers (`histc`"),
)
mixture(
    "experts, masked by a literal",
    by_expert(lambda m, e: F.one_hot(e, 9)),
    **of_experts("its size is a literal in the code (`one_hot`"),
)
mixture(
    "experts, the second half of which is louder",
    lambda m, x, g, e: looked_up(lambda w, e: w[e])(m, x, g * (1 + (e >= 4)), e),
    cut={},
)
mixture(
    "experts, weighed by their numbers",
    lambda m, x, g, e: looked_up(lambda w, e: w[e])(m, x, g * e, e),
    **of_experts("named by numbers (`mul`"),
)
mixture(
    "experts, by Python numbers",
    lambda m, x, g, e: sum(x @ m.up[i] @ m.down[i] * g[0, 0] for i in e[0].tolist()),  # type: ignore[arg-type, return-value]
    **of_experts("named by numbers (`Tensor.tolist`"),
)
mixture(
    "experts, in groups by a literal",
    lambda m, x, g, e: looked_up(lambda w, e: w[e])(m, x, *(m.router(x).view(-1, 4, 2) * 2).flatten(1).topk(2)),
    **of_experts("its size is a literal in the code (`view`"),
)
mixture(
    "experts, the first of which is louder",
    lambda m, x, g, e: looked_up(lambda w, e: w[e])(m, x, g * (1 + (e == 0)), e),
    cut={},
)
tokens(
    "channels that are chosen, each twice",
    lambda x: torch.cat([x, x.flip(-1)], -1).topk(4)[0],
    reads=4,
    **stays("its coordinates are ranked (`topk`"),
)
tokens(
    "channels that are chosen",
    lambda x: torch.zeros_like(x).scatter(-1, x.topk(3)[1], 1.0) * x,
    **stays("its coordinates are ranked (`topk`"),
)


class Expert(nn.Module):
    """An expert that is a module of its own."""

    def __init__(self, loudness: float = 1.0) -> None:
        super().__init__()
        self.up, self.down, self.loudness = nn.Linear(8, 16), nn.Linear(16, 8), loudness

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu()) * self.loudness


class Listed(nn.Module):
    """Eight experts in a list, two for each token."""

    def __init__(self, deal: Callable[[Listed, Tensor, Tensor, Tensor], Tensor], louder: float = 0.0) -> None:
        super().__init__()
        self.count, self.deal = 8, deal
        self.router = nn.Linear(8, 8)
        self.experts = nn.ModuleList(Expert(1 + louder * i) for i in range(8))

    def forward(self, x: Tensor) -> Tensor:
        gates, chosen = self.router(x).softmax(-1).topk(2)
        return self.deal(self, x, gates, chosen)


Iteration = Callable[[Listed, Tensor, Tensor, Tensor, Tensor, int], None]


def one_by_one(each: Iteration) -> Callable[[Listed, Tensor, Tensor, Tensor], Tensor]:
    def deal(self: Listed, x: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for i in range(self.count):
            each(self, out, x, gates, chosen, i)
        return out

    return deal


def add_rows(m: Listed, out: Tensor, x: Tensor, gates: Tensor, chosen: Tensor, i: int, louder: float = 1.0) -> None:
    rows, ranks = torch.where(chosen == i)
    out.index_add_(0, rows, m.experts[i](x[rows]) * gates[rows, ranks, None] * louder)


def by_a_mask(classes: Callable[[Listed], int], skip: bool) -> Callable[[Listed, Tensor, Tensor, Tensor], Tensor]:
    def deal(self: Listed, x: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
        out, hit = torch.zeros_like(x), F.one_hot(chosen, num_classes=classes(self)).permute(2, 1, 0)
        for i, expert in enumerate(self.experts):
            ranks, rows = torch.where(hit[i])
            if rows.numel() or not skip:
                out.index_add_(0, rows, expert(x[rows]) * gates[rows, ranks, None])
        return out

    return deal


def by_position(self: Listed, x: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
    """Those that some token was sent to."""
    out, hit = torch.zeros_like(x), F.one_hot(chosen, num_classes=self.count).permute(2, 1, 0)
    for expert in (hit.sum((1, 2)) > 0).nonzero():
        ranks, rows = torch.where(hit[expert].squeeze(0))
        out.index_add_(0, rows, self.experts[expert](x[rows]) * gates[rows, ranks, None])  # type: ignore[index]
    return out


def at_a_mask(m: Listed, out: Tensor, x: Tensor, gates: Tensor, chosen: Tensor, i: int) -> None:
    mine = chosen == i
    rows = mine.any(-1)
    if rows.any():
        out[rows] += m.experts[i](x[rows]) * (gates * mine).sum(-1)[rows].unsqueeze(-1)


def stacked(self: Listed, x: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
    said = [expert(x) * ((chosen == i) * gates).sum(1, keepdim=True) for i, expert in enumerate(self.experts)]
    return torch.stack(said).sum(0)


def to_others(m: Listed, out: Tensor, x: Tensor, gates: Tensor, chosen: Tensor, i: int) -> None:
    rows = (chosen == i).any(1).logical_not().nonzero().squeeze(1)
    out.index_add_(0, rows, m.experts[i](x[rows]))


def first_twice(m: Listed, out: Tensor, x: Tensor, gates: Tensor, chosen: Tensor, i: int) -> None:
    for _ in range(2 if i == 0 else 1):
        add_rows(m, out, x, gates, chosen, i)


def first_adds_more(m: Listed, out: Tensor, x: Tensor, gates: Tensor, chosen: Tensor, i: int) -> None:
    rows, _ = torch.where(chosen == i)
    out.index_add_(0, rows, m.experts[i](x[rows]))
    if i == 0:
        out.index_add_(0, rows, x[rows])


def eight(self: Listed, x: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(8):
        add_rows(self, out, x, gates, chosen, i)
    return out


def of_a_part(m: Listed, out: Tensor, x: Tensor, gates: Tensor, chosen: Tensor, i: int) -> None:
    """The first feature weighs what the first expert reads, and so on."""
    add_rows(m, out, x * x[:, i : i + 1], gates, chosen, i)


def in_two_sums(self: Listed, x: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
    sums = torch.zeros_like(x), torch.zeros_like(x)
    for i in range(self.count):
        add_rows(self, sums[i % 2], x, gates, chosen, i)
    return sums[0] - sums[1]


def and_the_first(deal: Callable[[Listed, Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda m, x, gates, chosen: deal(m, x, gates, chosen) + m.experts[0](x)


def listed(name: str, deal: Callable[[Listed, Tensor, Tensor, Tensor], Tensor], why: str = "", **how: float) -> None:
    cut = {} if why else {"router.weight": 0, "router.bias": 0}
    left = {"router": why} if why else {}
    add(f"listed experts, {name}", lambda: Listed(deal, **how), numbers(24, 8), cut, left=left)


SCALES = list(torch.linspace(0.5, 2, 8))
NUMBERED = "its coordinates are named by numbers (`eq`"
listed("one after the other", one_by_one(add_rows))
listed("where a mask is true", one_by_one(at_a_mask))
listed("by rows of a mask", by_a_mask(lambda m: m.count, skip=False))
listed("by rows of a mask as long as the list", by_a_mask(lambda m: len(m.experts), skip=True))
listed("looked up by position", by_position)
listed("looked up, and the first once more", and_the_first(by_position), "used in another way, too")
listed("one after the other, and the first once more", and_the_first(one_by_one(add_rows)), NUMBERED)
listed("each louder than the last", one_by_one(add_rows), NUMBERED, louder=0.5)
listed("made louder one by one", one_by_one(lambda *given: add_rows(*given, louder=1.0 + given[-1])), NUMBERED)
listed("the first of which is heard twice", one_by_one(first_twice), NUMBERED)
listed("the first of which adds more", one_by_one(first_adds_more), NUMBERED)
listed("heard by every token", stacked, NUMBERED)
listed("for tokens of others", one_by_one(to_others), NUMBERED)
listed(
    "weighed by tensors in a list",
    one_by_one(lambda m, o, x, *given: add_rows(m, o, x * SCALES[given[-1]], *given)),
    NUMBERED,
)
listed("of which each reads a part", one_by_one(of_a_part), NUMBERED)
listed("in two sums by turns", in_two_sums, NUMBERED)
listed("as many as a literal says", eight, "with fewer modules in its list, the code does not run")
listed(
    "of which the mean is taken",
    lambda m, *given: one_by_one(add_rows)(m, *given) / len(m.experts),
    "with fewer modules",
)
