"""Importance of channels and heads: what the weights that make them are worth, added up.

"l1" is the sum of magnitudes, "l2" the Euclidean norm, "taylor" the sum of |w · ∂loss/∂w|; "batch-norm" is the size of
the batch norm's scale, "activation" the mean magnitude of what the channel carries (of an expert: the mean size of what
it adds to a token that reaches it), "random" a control. A function
of a weight's name and values that returns importances of the same shape is summed up like "l1". Where the caller gives
the numbers of a group, those count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from secateur.base import UsageError, parameters_and_buffers, require_one_of
from secateur.capture import ExpertWeight, Value, find_sites, mean_magnitudes, measure_use
from secateur.channels.budget import NO_UNITS, ScoresByGroup
from secateur.channels.dissection import Dissection
from secateur.couple import Bundle, Group, Ids, Member, Removal
from secateur.plans import Score
from secateur.weights import SCORES, ScoreFunction, Weight, check_finite, l1, l2, score_weight

CHANNEL_SCORES = (*SCORES, "batch-norm", "activation")

Scores = NDArray[np.float64]


class ChannelScorer:
    """Scores the units of groups, over whatever is still alive."""

    def __init__(
        self,
        module: nn.Module,
        dissection: Dissection,
        score: Score | Mapping[str, Any],
        data: Iterable[Any],
        given: ScoresByGroup,
    ) -> None:
        self.name = "given" if isinstance(score, Mapping) else getattr(score, "__name__", str(score))
        score = "l1" if isinstance(score, Mapping) else score
        if not callable(score):
            require_one_of("score", score, CHANNEL_SCORES, ", or pass a function")
        self.dissection = dissection
        self.given = given
        # Without weights there is nothing to rank: any channel is as good as another.
        self._tensors = parameters_and_buffers(module)[0]
        self.on_meta = any(parameter.device.type == "meta" for parameter in self._tensors.values())
        self.score = "none" if self.on_meta else score
        self.name = "none" if self.on_meta else self.name
        self.function: ScoreFunction | None = score if callable(score) else SCORES.get(score)
        self._activations: Mapping[int, Scores] = {}
        if self.score == "activation":
            self._activations = {
                **_mean_activations(module, dissection, data),
                **_mean_additions(module, dissection, data),
            }

    def applies_to(self, group: Group) -> str | None:
        """Why the score cannot rank this group; None where it can."""
        if group.index in self.given:
            return None
        if self.score == "batch-norm" and not self._norm_members(group):
            return "no batch norm scales its channels"
        if self.score == "activation" and group.index not in self._activations:
            return (
                "no gate was seen to weigh its experts" if group.is_experts else "no layer reads its channels directly"
            )
        return None

    def scores_of(self, bundles: Iterable[Bundle], dead: Ids = NO_UNITS) -> ScoresByGroup:
        """One number for each unit of the bundles' groups, over what is left without the dead units."""
        removal = self.dissection.removal(dead)
        return {group.index: self._scores(group, removal) for bundle in bundles for group in bundle.groups}

    def _scores(self, group: Group, removal: Removal) -> Scores:
        if group.index in self.given:
            return self.given[group.index]
        if self.on_meta:
            return np.zeros(len(group))
        if self.score == "activation":
            return self._activations[group.index]
        members = self._norm_members(group) if self.score == "batch-norm" else self.dissection.producers(group)
        total = np.zeros(len(group))
        for member in members:
            total += self.dissection.sum_by_unit(group, member, self._sum_by_coordinate(member, removal))
        for path in self.dissection.lists(group) if self.score != "batch-norm" else ():
            total += self._of_modules(group, path, removal)
        return np.sqrt(total) if self.score == "l2" else total

    def _of_modules(self, group: Group, path: str, removal: Removal) -> Scores:
        """What all weights of a module are worth, for each unit."""
        modules = self.dissection.coupling.modules[path]
        worth = np.zeros(modules.shape[1])
        for leaf in self.dissection.leaves:
            place = self.dissection.place_in_list(leaf)
            if leaf.kind == "parameter" and place is not None and place[0] is modules:
                worth[place[1]] += self._sum_by_coordinate(Member(leaf, 0, 1), removal).sum()
        return group.sum_by_unit(self.dissection.coupling.units.resolve(modules), worth)

    def _norm_members(self, group: Group) -> list[Member]:
        return [m for m in group.members if m.leaf.index in self.dissection.coupling.norm_scales]

    def _sum_by_coordinate(self, member: Member, removal: Removal) -> Scores:
        sums = self._unchecked_sum_by_coordinate(member, removal)
        if not np.isfinite(sums).all():
            name = member.leaf.name
            check_finite(Weight(name, (), self._tensors[name], None))
            raise UsageError(f"The scores of {name} are too large to add up; scale the weights or the score down.")
        return sums

    def _unchecked_sum_by_coordinate(self, member: Member, removal: Removal) -> Scores:
        """Importances summed over all other axes, without what has been removed on those."""
        leaf, axes = member.leaf, self.dissection.coupling.axes(member.leaf)
        tensor = self._tensors[leaf.name]
        weight = Weight(leaf.name, leaf.names[1:], tensor, None)
        others = [d for d in range(tensor.dim()) if d != member.axis]
        gone = {d: np.flatnonzero(~removal.alive(axes[d])) for d in others}
        if self.function in (l1, l2) and not tensor.is_complex() and not any(len(dead) for dead in gone.values()):
            if not others:
                magnitudes = tensor.detach().abs().double()
                return _to_numpy(magnitudes.square() if self.function is l2 else magnitudes)
            norm = torch.linalg.vector_norm(
                tensor.detach(), 1 if self.function is l1 else 2, others, dtype=_at_least_float32(tensor)
            )
            return _to_numpy(norm.double().square() if self.function is l2 else norm)
        if self.function is None:
            importance = tensor.detach().abs()
        elif tensor.is_complex():
            importance = self.function(leaf.name, tensor).abs()
        else:
            importance = score_weight(weight, self.function)
        importance = importance.double() if importance.dtype == torch.float64 else importance.float()
        for d, dead in gone.items():
            if len(dead):
                importance = importance.index_fill(d, torch.from_numpy(dead).to(importance.device), 0)
        return _to_numpy(importance.sum(others) if others else importance)


def _mean_activations(module: nn.Module, dissection: Dissection, data: Iterable[Any]) -> dict[int, Scores]:
    """For each group the mean magnitude of its channels where a layer first reads them."""
    units, coupling = dissection.coupling.units, dissection.coupling
    group_of = dissection.group_of_unit()
    at: dict[int, tuple[int, int]] = {}
    rows: dict[tuple[int, int], Ids] = {}

    def wanted(value: Value, axis: int) -> bool:
        resolved = units.resolve(coupling.axes(value)[axis])
        new = {int(group) for group in np.unique(group_of[resolved])} - {-1} - at.keys()
        at.update(dict.fromkeys(new, (value.index, axis)))
        rows[value.index, axis] = resolved
        return bool(new)

    sites = find_sites(dissection.trace, wanted)
    mean_magnitudes(module, data, dissection.trace, sites)
    by_place = {
        (dissection.trace.calls[call][site.argument].index, site.axis): site.mean
        for call, own in sites.items()
        for site in own
    }
    return {
        group.index: _mean_by_unit(group, rows[at[group.index]], by_place[at[group.index]])
        for group in dissection.groups
        if group.index in at
    }


def _mean_additions(module: nn.Module, dissection: Dissection, data: Iterable[Any]) -> dict[int, Scores]:
    """For each group of experts the mean size of what they add to the tokens that reach them."""
    groups = {group.index: group for group in dissection.groups if group.is_experts}
    axes: dict[int, Ids] = {}
    weights: dict[int, ExpertWeight] = {}
    for index, group in groups.items():
        for path in dissection.lists(group):
            axes[index] = dissection.coupling.modules[path]
        for m in group.members:
            if m.axis == 0 and len(m.leaf.shape) > 2 and m.leaf.kind == "parameter":
                weights[m.leaf.index] = ExpertWeight(index, m.leaf.shape[0])
                axes.setdefault(index, dissection.coupling.axes(m.leaf)[0])
    for leaf in dissection.leaves:
        experts, number = dissection.place_in_list(leaf) or (None, 0)
        for index in [index for index, axis in axes.items() if axis is experts]:
            weights[leaf.index] = ExpertWeight(index, axes[index].shape[1], number)
    uses = measure_use(module, data, weights) if weights else {}
    resolve = dissection.coupling.units.resolve
    return {index: groups[index].sum_by_unit(resolve(axes[index]), use.mean) for index, use in uses.items()}


def _mean_by_unit(group: Group, rows: Ids, by_coordinate: Scores) -> Scores:
    ones = group.sum_by_unit(rows, np.ones_like(by_coordinate))
    return group.sum_by_unit(rows, by_coordinate) / np.maximum(ones, 1)


def _at_least_float32(tensor: Tensor) -> torch.dtype:
    return tensor.dtype if tensor.dtype in (torch.float32, torch.float64) else torch.float32


def _to_numpy(tensor: Tensor) -> Scores:
    return tensor.double().cpu().numpy()
