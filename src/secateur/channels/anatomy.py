"""`inspect`: what of a model can be cut, what cannot, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from secateur.base import LeftAlone, count_text, left_alone_lines, unwrap, wrapped
from secateur.channels.costs import macs_of, parameters_of
from secateur.channels.dissection import dissect
from secateur.plans import GroupRow, group_lines


@dataclass(frozen=True)
class GroupSummary:
    """Channels or heads that can be removed, and the layers that shrink with them."""

    name: str
    layers: tuple[str, ...]
    kind: str
    """ "channels", "heads", "experts" or "groups"."""
    units: int
    tied_to: tuple[str, ...]
    """Other groups that have to be cut in the same proportion."""
    parameters: int
    """Parameters that go if all but one unit go."""
    macs: int
    """Multiply-adds of one example that go then."""


@dataclass(frozen=True)
class Anatomy:
    """What `inspect` returns; `print(anatomy)` is a table."""

    groups: tuple[GroupSummary, ...]
    left_alone: tuple[LeftAlone, ...]
    """What cannot be cut, and because of which operator."""
    parameters: int
    """Of the whole model."""
    macs: int
    """Multiply-adds of one example."""

    def __str__(self) -> str:
        rows = [GroupRow(g.name, f"{g.units:,}", g.kind, g.layers, g.parameters, g.macs) for g in self.groups]
        head = (
            f"{count_text(len(self.groups), 'group')} can be cut; "
            f"{self.parameters:,} parameters, {self.macs:,} MACs for one example"
        )
        return "\n".join([*wrapped([head]), *group_lines(rows), *wrapped(left_alone_lines(self.left_alone))])


def inspect(model: nn.Module, example_inputs: Any) -> Anatomy:
    """What of `model` can be cut, and what is left alone because of which operator.

    Args:
        model: stays as it is. It may be on the meta device.
        example_inputs: what `forward` takes: a tensor, a tuple of arguments, or a dict of keyword arguments. Two
            examples at once are enough.
    """
    dissection = dissect(model, example_inputs)
    parameters, macs = parameters_of(dissection, unwrap(model)), macs_of(dissection)
    summaries = []
    for bundle in dissection.bundles:
        names = [dissection.name(group) for group in bundle.groups]
        for group, name in zip(bundle.groups, names, strict=True):
            tied_to = tuple(other for other in names if other != name)
            saved = (round(cost.saved({group.index: 1 / len(group)})) for cost in (parameters, macs))
            summaries.append(GroupSummary(*dissection.told(group), len(group), tied_to, *saved))
    return Anatomy(tuple(summaries), dissection.left_alone, round(parameters.total({})), round(macs.total({})))
