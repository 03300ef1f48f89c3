"""`plan_channels`: from a model, example inputs and an amount to a `Plan`. Nothing in the model changes here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from secateur.amount import Amount, parse_amount
from secateur.anatomy import Dissection, dissect, require_module
from secateur.capture.trace import Value, numbers_of
from secateur.channel_plan import GroupCut, Plan, TensorCut
from secateur.channel_scores import ChannelScorer
from secateur.choice import Budget, choose_steps
from secateur.couple.bundles import Bundle
from secateur.couple.constraints import Conflict
from secateur.couple.coupling import Contraction
from secateur.couple.groups import Group
from secateur.couple.removal import Removal
from secateur.errors import UsageError
from secateur.score import Score
from secateur.weights import LeftAlone, listed, matches_any, require_known, unwrap

__all__ = ["NothingToCut", "plan_channels"]


class NothingToCut(UsageError):
    """No channel can be removed, or the amount is too small to remove one."""


def plan_channels(
    model: nn.Module,
    example_inputs: Any,
    amount: Amount | None = None,
    *,
    scope: Literal["layer", "global"] = "layer",
    score: Score = "l1",
    multiple_of: int | None = None,
    keep: Sequence[str] = (),
    per_layer: Mapping[str, Amount] | None = None,
    iterations: int = 1,
    floor: float = 0.1,
    data: Iterable[Any] = (),
    already: Plan | None = None,
) -> Plan:
    """Ranks the channels and heads of `model` and plans the removal of the `amount` that matters least.

    Args:
        model: stays as it is. Every group of coupled channels is found by running it once on `example_inputs`.
        example_inputs: a tensor, a tuple of arguments, or a dict of keyword arguments.
        amount: the share of channels to remove, such as 0.5 or "50%".
        scope: "layer" removes that share of every group; "global" ranks all groups together, each group's scores
            divided by their mean so that layers compare.
        score: "l1", "l2", "batch-norm", "taylor" (needs gradients), "activation" (runs the model on `data`), "random",
            or a function of a weight's name and values.
        multiple_of: round the channels that stay to multiples of this, in every group. By default groups of 32 and
            more are rounded to a multiple of 2 to 16, as the device likes it, by at most about 3 % of the group.
        keep: names of layers, with wildcards, that keep all of their own channels; their inputs may still shrink.
        per_layer: amounts for single layers, by name or wildcard; the first that fits counts.
        iterations: rank again after every so many-th part of the amount, over what is then left.
        floor: with scope "global", the share of every group that stays at least; one unit always stays.
        data: inputs for "activation", each like `example_inputs`; the example alone by default.
        already: the plan that made `model` what it is; what it removed counts in the amounts.
    """
    if scope not in ("layer", "global"):
        raise UsageError(f'There is no scope {scope!r}; choose "layer" or "global".')
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise UsageError(f"iterations is {iterations!r}; give how often to rank, 1 or more.")
    require_module(model)
    module = unwrap(model)
    dissection = dissect(module, example_inputs)
    planner = _Planner(module, dissection, listed("keep", keep), per_layer or {}, amount, already)
    if isinstance(data, Tensor | dict):
        raise UsageError("data is a single input; give a list of inputs, each like example_inputs.")
    if already is not None and not isinstance(already, Plan):
        raise UsageError(f"already is a {type(already).__name__}; pass the Plan that was applied to the model.")
    scorer = ChannelScorer(module, dissection, score, data or (example_inputs,))
    planner.set_scorer(scorer)
    budget = Budget(scope, multiple_of, floor, next(iter(module.parameters())))
    planner.choose(budget, iterations)
    return planner.plan(scope, scorer.name, example_inputs)


class _Planner:
    def __init__(
        self,
        module: nn.Module,
        dissection: Dissection,
        keep: Sequence[str],
        per_layer: Mapping[str, Amount],
        amount: Amount | None,
        already: Plan | None,
    ) -> None:
        self.module = module
        self.dissection = dissection
        self.left_alone = list(dissection.left_alone)
        names = [name for leaf in dissection.trace.leaves if leaf.kind == "parameter" for name in leaf.names]
        require_known("keep", keep, names)
        if not isinstance(per_layer, Mapping):
            raise UsageError(f"per_layer is {per_layer!r}; give a dict such as {{'blocks.0': 0.25}}.")
        require_known("per_layer", per_layer, names)
        self.bundles = self._without(dissection.bundles, lambda group: self._kept(group, keep))
        self.original = {group.name: group.before for group in already.groups} if already else {}
        self.amounts = {id(bundle): self._amount(bundle, per_layer, amount) for bundle in self.bundles}
        self._require_cuttable(per_layer)
        self.dead = np.empty(0, np.int64)
        self.attributes: dict[Any, int] = {}

    def set_scorer(self, scorer: ChannelScorer) -> None:
        self.scorer = scorer
        self.bundles = self._without(self.bundles, scorer.applies_to)

    def choose(self, budget: Budget, iterations: int) -> None:
        """Selects the units that go; what the code's sizes then refuse is left alone, with the reason."""
        if not self.bundles:
            raise NothingToCut(self._nothing())
        while True:
            for i in range(iterations):
                shares = {
                    id(bundle): self._share_left(bundle, 1 - (1 - self.amounts[id(bundle)]) ** ((i + 1) / iterations))
                    for bundle in self.bundles
                }
                removal = self.dissection.removal(self.dead)
                scores = {
                    group.index: self.scorer.scores(group, removal)
                    for bundle in self.bundles
                    for group in bundle.groups
                }
                self.dead = choose_steps(self.bundles, self.amounts, shares, scores, self.dead, budget)
            try:
                self.attributes = self._solve()
                break
            except Conflict as conflict:
                self._drop(conflict)
        if not len(self.dead):
            raise NothingToCut(self._nothing())
        gone = set(self.dead.tolist())
        self.left_alone += [
            LeftAlone(self.dissection.name(bundle.groups[0]), "the amount rounds to none of its units")
            for bundle in self.bundles
            if self.amounts[id(bundle)] > 0 and gone.isdisjoint(bundle.groups[0].units.tolist())
        ]

    def plan(self, scope: str, score: str, example_inputs: Any) -> Plan:
        dissection, removal = self.dissection, self.dissection.removal(self.dead)
        parameters, leaves = sum(p.numel() for p in self.module.parameters()), dissection.leaves
        saved = dissection.parameters_of(leaves) - dissection.parameters_left(removal, leaves)
        return Plan(
            tensors=self._tensor_cuts(removal),
            attributes={key: (dissection.trace.attributes[key], value) for key, value in self.attributes.items()},
            groups=tuple(self._group_cuts()),
            left_alone=tuple(self.left_alone),
            parameters=(parameters, parameters - saved),
            macs=(dissection.macs, dissection.macs_left(removal)),
            output_shapes=self._output_shapes(),
            scope=scope,
            score=score,
            example_inputs=example_inputs,
            numbers=numbers_of(dissection.trace.calls[: dissection.trace.example_calls]),
        )

    def _output_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the example pass; none where they depend on the data, and thus on the weights."""
        trace = self.dissection.trace
        made = {value.index: call.index for call in trace.calls for value in call.outputs if value is not None}
        outputs = [value for value in trace.outputs if made.get(value.index, 0) < trace.example_calls]
        return () if trace.data_dependent else tuple(value.shape for value in outputs)

    def _share_left(self, bundle: Bundle, amount: float) -> float:
        """The share of the bundle as it is now that has to go so that `amount` of the original bundle is gone."""
        group = bundle.groups[0]
        original = self.original.get(self.dissection.name(group), len(group))
        return 1 - (1 - amount) * original / len(group)

    def _solve(self) -> dict[Any, int]:
        dissection = self.dissection
        removal = dissection.removal(self.dead)
        changed = sorted({count for bundle in self.bundles for group in bundle.groups for count in group.counted_by})
        return dissection.system.solve(changed, lambda count: removal.count(dissection.count_axes[count]))

    def _drop(self, conflict: Conflict) -> None:
        """Leaves the smallest bundle alone that the conflict counts, and starts over."""
        system = self.dissection.system
        counts = set(system.counts[system.constraints.index(conflict.constraint)])
        for attribute in system.attributes[system.constraints.index(conflict.constraint)]:
            counts |= {count for i in system.with_attribute[attribute] for count in system.counts[i]}
        guilty = [b for b in self.bundles if any(group.counted_by & counts for group in b.groups)]
        dropped = min(guilty, key=lambda bundle: bundle.units)
        self.left_alone += [
            LeftAlone(self.dissection.name(group), str(conflict.constraint.reason)) for group in dropped.groups
        ]
        self.bundles = [bundle for bundle in self.bundles if bundle is not dropped]
        self.dead = np.empty(0, np.int64)

    def _without(self, bundles: Sequence[Bundle], reason_against: Any) -> list[Bundle]:
        left = []
        for bundle in bundles:
            reasons = {reason for group in bundle.groups if (reason := reason_against(group))}
            self.left_alone += [LeftAlone(self.dissection.name(bundle.groups[0]), reason) for reason in reasons]
            if not reasons:
                left.append(bundle)
        return left

    def _kept(self, group: Group, keep: Sequence[str]) -> str | None:
        names = [name for member in self.dissection.producers(group) for name in member.leaf.names]
        return "named in keep" if keep and matches_any(keep, names) else None

    def _amount(self, bundle: Bundle, per_layer: Mapping[str, Amount], amount: Amount | None) -> float:
        names = [name for g in bundle.groups for m in self.dissection.producers(g) for name in m.leaf.names]
        for pattern, own in per_layer.items():
            if matches_any([pattern], names):
                return parse_amount(own)
        if amount is None:
            if per_layer:
                return 0.0
            raise UsageError("Say how much to remove, such as 0.5 for half of the channels.")
        return parse_amount(amount)

    def _require_cuttable(self, per_layer: Mapping[str, Amount]) -> None:
        """An amount for a layer that cannot be cut would be ignored in silence."""
        names = [n for b in self.bundles for g in b.groups for m in self.dissection.producers(g) for n in m.leaf.names]
        for pattern in per_layer:
            if not matches_any([pattern], names):
                reasons = [item.reason for item in self.left_alone if matches_any([pattern], [f"{item.name}.weight"])]
                why = f": {reasons[0]}" if reasons else "; it makes no channels of its own"
                raise NothingToCut(f"per_layer names {pattern!r}, which cannot be cut{why}. Leave it out.")

    def _tensor_cuts(self, removal: Removal) -> dict[str, TensorCut]:
        cuts = {}
        for leaf in self.dissection.leaves:
            alive = [removal.alive(axis) for axis in self.dissection.coupling.axes(leaf)]
            kept = {d: np.flatnonzero(flags) for d, flags in enumerate(alive) if not flags.all()}
            if kept:
                cuts[leaf.name] = TensorCut(leaf.shape, kept)
        return cuts

    def _group_cuts(self) -> Iterable[GroupCut]:
        dissection = self.dissection
        gone = np.zeros(dissection.coupling.units.count, bool)
        gone[self.dead] = True
        contractions = _axes_by_group(dissection)
        for bundle in self.bundles:
            for group in bundle.groups:
                dead = int(gone[group.units].sum())
                if dead:
                    share = dead / len(group)
                    macs = sum(c.macs - round(_left(c, own, share)) for c, own in contractions.get(group.index, ()))
                    yield GroupCut(
                        dissection.name(group),
                        dissection.layers(group),
                        dissection.kind(group),
                        len(group),
                        len(group) - dead,
                        _parameters_saved(group, dead),
                        macs,
                    )

    def _nothing(self) -> str:
        if not self.left_alone:
            return "The amount is too small to remove a single channel; ask for more, or for a smaller multiple_of."
        reasons = "; ".join(f"{item.name}: {item.reason}" for item in self.left_alone[:3])
        more = f" (and {len(self.left_alone) - 3} more)" if len(self.left_alone) > 3 else ""
        if self.bundles:
            return f"The amount is too small to remove a single channel of any group. Left alone: {reasons}{more}."
        return (
            f"Nothing in the model can be cut: {reasons}{more}. secateur.inspect(model, example_inputs) shows it all."
        )


def _parameters_saved(group: Group, dead: int) -> int:
    """By this group alone."""
    lost: dict[int, tuple[Value, dict[int, int]]] = {}
    for member in group.members:
        if member.leaf.kind == "parameter":
            lost.setdefault(member.leaf.index, (member.leaf, {}))[1][member.axis] = dead * member.coordinates
    return sum(
        prod(leaf.shape) - prod(max(0, n - own.get(d, 0)) for d, n in enumerate(leaf.shape))
        for leaf, own in lost.values()
    )


def _left(contraction: Contraction, coordinates: Mapping[int, int], share: float) -> float:
    """The MACs that are left if `share` of the listed coordinates of its axes is gone."""
    left = float(contraction.macs)
    for i, own in coordinates.items():
        left *= 1 - min(1.0, share * own / contraction.axes[i].shape[1])
    return left


def _axes_by_group(dissection: Dissection) -> dict[int, list[tuple[Contraction, dict[int, int]]]]:
    """For each group the contractions that it shrinks, and on which of their axes how many coordinates are its own."""
    units, group_of = dissection.coupling.units, dissection.group_of_unit()
    found: dict[int, list[tuple[Contraction, dict[int, int]]]] = {}
    known: dict[int, list[tuple[int, int]]] = {}
    for contraction in dissection.coupling.contractions:
        own: dict[int, dict[int, int]] = {}
        for i, axis in enumerate(contraction.axes):
            if id(axis) not in known:
                groups, counts = np.unique(group_of[units.resolve(axis)], return_counts=True)
                known[id(axis)] = [(g, n) for g, n in zip(groups.tolist(), counts.tolist(), strict=True) if g >= 0]
            for group, count in known[id(axis)]:
                own.setdefault(group, {})[i] = count
        for group, coordinates in own.items():
            found.setdefault(group, []).append((contraction, coordinates))
    return found
