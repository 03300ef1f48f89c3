"""The groups that `per_layer` of `plan_channels` can cut each by itself, with the name to call them by there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from glob import escape
from typing import Any

from torch import nn

from secateur.base import matches_any, require_known
from secateur.channels.dissection import Dissection, dissect
from secateur.channels.sensitivity_curves import CutGroup
from secateur.couple import Bundle


def find_cut_groups(model: nn.Module, example_inputs: Any, keep: Sequence[str]) -> list[CutGroup]:
    dissection = dissect(model, example_inputs)
    require_known("keep", keep, dissection.parameter_names)
    bundles = [bundle for bundle in dissection.bundles if not matches_any(keep, _makers(dissection, [bundle]))]
    parts = _told_apart(dissection, bundles)
    return [_cut_group(dissection, part, parts) for part in parts]


def _told_apart(dissection: Dissection, bundles: Sequence[Bundle]) -> list[list[Bundle]]:
    """One layer may make the channels of several bundles. Where no name tells them apart, they are cut together."""
    parts = [[bundle] for bundle in bundles]
    while True:
        nameless = next((part for part in parts if _key(dissection, part, parts) is None), None)
        if nameless is None:
            return parts
        own = set(_makers(dissection, nameless))
        other = next(part for part in parts if part is not nameless and own & set(_makers(dissection, part)))
        other += nameless
        parts.remove(nameless)


def _key(dissection: Dissection, part: Sequence[Bundle], parts: Iterable[Sequence[Bundle]]) -> str | None:
    """The first layer, else the first parameter, whose name means this part alone."""
    makers = _makers(dissection, part)
    others = [name for other in parts if other is not part for name in _makers(dissection, other)]
    layers = [name.rpartition(".")[0] for name in makers if "." in name]
    return next((escape(name) for name in (*layers, *makers) if not matches_any([escape(name)], others)), None)


def _makers(dissection: Dissection, part: Iterable[Bundle]) -> list[str]:
    """The parameters that make the channels, by all of their names: what `per_layer` goes by."""
    return dissection.producer_names(group for bundle in part for group in bundle.groups)


def _cut_group(dissection: Dissection, part: Sequence[Bundle], parts: Iterable[Sequence[Bundle]]) -> CutGroup:
    groups = [group for bundle in part for group in bundle.groups]
    names = tuple(dissection.name(group) for group in groups)
    layers = tuple(dict.fromkeys(layer for group in groups for layer in dissection.layers(group)))
    key = _key(dissection, part, parts)
    assert key is not None
    return CutGroup(names[0], key, names, layers, sum(map(len, groups)))
