"""What a model costs once a share of each group is gone: parameters, bytes, MACs, or milliseconds of its layers.

A cost is a sum of terms, each of which depends on a few groups, so that a search has to add up again only those that a
change touches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod

from torch import Tensor, nn

from secateur.channels.dissection import Dissection
from secateur.couple import Axis, Shares, Width


@dataclass(frozen=True)
class Term:
    groups: frozenset[int]
    at: Callable[[Shares], float]


class Costs:
    def __init__(self, terms: Iterable[Term], fixed: float = 0.0) -> None:
        given = list(terms)
        self.terms = [term for term in given if term.groups]
        self.fixed = sum((term.at({}) for term in given if not term.groups), fixed)
        self._of_group: dict[int, list[int]] = {}
        for i, term in enumerate(self.terms):
            for group in term.groups:
                self._of_group.setdefault(group, []).append(i)

    @cached_property
    def _whole(self) -> list[float]:
        return [term.at({}) for term in self.terms]

    def total(self, shares: Shares) -> float:
        return self.fixed + sum(term.at(shares) for term in self.terms)

    def saved(self, shares: Shares) -> float:
        """By cutting groups to these shares, of the whole model."""
        return sum(self._whole[i] - self.terms[i].at(shares) for i in self.touched_by(shares))

    def touched_by(self, groups: Iterable[int]) -> list[int]:
        """The numbers of the terms that depend on any of the groups."""
        return sorted({i for group in groups for i in self._of_group.get(group, ())})


def parameters_of(dissection: Dissection, module: nn.Module) -> Costs:
    return _of_tensors(dissection, {name: (parameter, 1) for name, parameter in module.named_parameters()})


def bytes_of(dissection: Dissection, module: nn.Module) -> Costs:
    """Of parameters and buffers, as a plain safetensors file stores them, without its header."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    return _of_tensors(dissection, {name: (tensor, tensor.element_size()) for name, tensor in tensors})


def _of_tensors(dissection: Dissection, weighed: dict[str, tuple[Tensor, int]]) -> Costs:
    """Tensors by name, each with what one of its numbers costs."""
    terms = []
    for leaf in dissection.leaves:
        name = next((name for name in leaf.names if name in weighed), None)
        if name is None:
            continue
        whole = _product(dissection, dissection.coupling.axes(leaf), weighed.pop(name)[1])
        place = dissection.place_in_list(leaf)
        terms.append(whole if place is None else _in_list(whole, dissection.widths(place[0])))
    return Costs(terms, sum(tensor.numel() * weight for tensor, weight in weighed.values()))


def _in_list(whole: Term, modules: Width) -> Term:
    """Of a tensor whose module may leave a list, which is as likely as for any other there."""
    length = modules.at({})
    return Term(whole.groups | modules.groups, lambda shares: whole.at(shares) * modules.at(shares) / length)


def macs_of(dissection: Dissection) -> Costs:
    """Multiply-adds of one example; what does not depend on the batch counts whole."""
    contractions = dissection.coupling.contractions
    return Costs(_product(dissection, each.axes, each.factor, each.examples) for each in contractions)


def _product(dissection: Dissection, axes: Iterable[Axis], factor: int, examples: int = 1) -> Term:
    """Of the lengths of axes."""
    lengths = [dissection.widths(axis) for axis in axes]
    groups = frozenset().union(*(length.groups for length in lengths))
    return Term(groups, lambda shares: factor * prod(length.at(shares) for length in lengths) // examples)
