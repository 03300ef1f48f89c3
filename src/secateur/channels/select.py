"""`Planner`: from a dissected model and the units that are to go to a `Plan`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from secateur.base import Amount, LeftAlone, UsageError, first_match, matches_any, parse_amount, require_known, some_of
from secateur.capture import numbers_of
from secateur.channels.budget import Budget, choose_steps, lowest_units
from secateur.channels.costs import macs_of, parameters_of
from secateur.channels.dissection import Dissection
from secateur.channels.scores import ChannelScorer
from secateur.couple import Bundle, Conflict, Group, Removal
from secateur.plans import GroupCut, Plan, TensorCut

__all__ = ["Decide", "NothingToCut", "Planner"]


Decide = Callable[[Sequence[Bundle], Mapping[int, NDArray[np.float64]]], Mapping[int, int]]
"""From bundles and the scores of their groups' units to the number of steps that each bundle, by its id, loses."""


class NothingToCut(UsageError):
    """No channel can be removed, or the amount is too small to remove one."""


class Planner:
    """Selects units of a dissected model, and makes the plan of them. Nothing in the model changes."""

    def __init__(
        self,
        module: nn.Module,
        dissection: Dissection,
        keep: Sequence[str],
        per_layer: Mapping[str, Amount],
        previous: Plan | None,
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
        self.original = {group.name: group.before for group in previous.groups} if previous else {}
        self.amounts: dict[int, float] = {}
        """By the id of a bundle, how much of it is to go, as far as that was said."""
        for bundle in self.bundles:
            own = first_match(per_layer, self._producer_names(bundle.groups))
            if own is not None:
                self.amounts[id(bundle)] = parse_amount(own)
        self._require_cuttable(per_layer)
        self.dead = np.empty(0, np.int64)
        self.attributes: dict[Any, int] = {}

    def set_scorer(self, scorer: ChannelScorer) -> None:
        self.scorer = scorer
        self.bundles = self._without(self.bundles, scorer.applies_to)

    def choose(self, amount: Amount | None, budget: Budget, iterations: int) -> None:
        """Selects the lowest-scoring units, so many as the amounts say."""
        if amount is None and not self.amounts:
            raise UsageError('Say how much to remove, such as 0.5 for half of the channels, or target="latency=0.5".')
        share = 0.0 if amount is None else parse_amount(amount)
        for bundle in self.bundles:
            self.amounts.setdefault(id(bundle), share)

        def select() -> NDArray[np.int64]:
            dead = np.empty(0, np.int64)
            for i in range(iterations):
                shares = {
                    id(bundle): self._share_left(bundle, 1 - (1 - self.amounts[id(bundle)]) ** ((i + 1) / iterations))
                    for bundle in self.bundles
                }
                scores = self._scores(dead)
                steps = choose_steps(self.bundles, self.amounts, shares, scores, dead, budget)
                dead = lowest_units(self.bundles, steps, scores, dead)
            return dead

        self._until_sizes_fit(select)

    def choose_by(self, decide: Decide) -> None:
        """Selects the lowest-scoring units, so many of each bundle as `decide` makes of their scores."""

        def select() -> NDArray[np.int64]:
            nothing = np.empty(0, np.int64)
            scores = self._scores(nothing)
            return lowest_units(self.bundles, decide(self.bundles, scores), scores, nothing)

        self._until_sizes_fit(select)

    def _until_sizes_fit(self, select: Callable[[], NDArray[np.int64]]) -> None:
        """Selects units; what the sizes in the code then refuse is left alone, with the reason."""
        while True:
            if not self.bundles:
                raise NothingToCut(self._nothing())
            self.dead = select()
            try:
                self.attributes = self._solve()
                break
            except Conflict as conflict:
                self._drop(conflict)
        if not len(self.dead):
            raise NothingToCut(self._nothing())

    def _scores(self, dead: NDArray[np.int64]) -> dict[int, NDArray[np.float64]]:
        removal = self.dissection.removal(dead)
        return {group.index: self.scorer.scores(group, removal) for b in self.bundles for group in b.groups}

    def _untouched(self) -> list[LeftAlone]:
        gone = set(self.dead.tolist())
        return [
            LeftAlone(self.dissection.name(bundle.groups[0]), "the amount rounds to none of its units")
            for bundle in self.bundles
            if self.amounts.get(id(bundle), 0) > 0 and gone.isdisjoint(bundle.groups[0].units.tolist())
        ]

    def plan(self, scope: str, score: str, example_inputs: Any) -> Plan:
        dissection, removal = self.dissection, self.dissection.removal(self.dead)
        parameters, leaves = sum(p.numel() for p in self.module.parameters()), dissection.leaves
        saved = dissection.parameters_of(leaves) - dissection.parameters_left(removal, leaves)
        return Plan(
            tensors=self._tensor_cuts(removal),
            attributes={key: (dissection.trace.attributes[key], value) for key, value in self.attributes.items()},
            groups=tuple(self._group_cuts()),
            left_alone=(*self.left_alone, *self._untouched()),
            parameters=(parameters, parameters - saved),
            macs=(dissection.macs, dissection.macs_left(removal)),
            output_shapes=self._output_shapes(),
            scope=scope,
            score=score,
            example_inputs=example_inputs,
            constants=numbers_of(dissection.trace.calls[: dissection.trace.example_calls]),
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

    def _without(self, bundles: Sequence[Bundle], reason_against: Any) -> list[Bundle]:
        left = []
        for bundle in bundles:
            reasons = {reason for group in bundle.groups if (reason := reason_against(group))}
            self.left_alone += [LeftAlone(self.dissection.name(bundle.groups[0]), reason) for reason in reasons]
            if not reasons:
                left.append(bundle)
        return left

    def _kept(self, group: Group, keep: Sequence[str]) -> str | None:
        return "named in keep" if keep and matches_any(keep, self._producer_names([group])) else None

    def _producer_names(self, groups: Iterable[Group]) -> list[str]:
        return [name for g in groups for member in self.dissection.producers(g) for name in member.leaf.names]

    def _require_cuttable(self, per_layer: Mapping[str, Amount]) -> None:
        """An amount for a layer that cannot be cut would be ignored in silence."""
        names = self._producer_names(group for bundle in self.bundles for group in bundle.groups)
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
        parameters, macs = parameters_of(dissection, self.module), macs_of(dissection)
        for bundle in self.bundles:
            for group in bundle.groups:
                dead = int(gone[group.units].sum())
                if dead:
                    left = {group.index: 1 - dead / len(group)}
                    yield GroupCut(
                        dissection.name(group),
                        dissection.layers(group),
                        dissection.kind(group),
                        len(group),
                        len(group) - dead,
                        round(parameters.saved(left)),
                        round(macs.saved(left)),
                    )

    def _nothing(self) -> str:
        if not self.left_alone:
            return "The amount is too small to remove a single channel; ask for more, or for a smaller multiple_of."
        reasons = some_of([f"{item.name}: {item.reason}" for item in self.left_alone], between="; ")
        if self.bundles:
            return f"The amount is too small to remove a single channel of any group. Left alone: {reasons}."
        return f"Nothing in the model can be cut: {reasons}. secateur.inspect(model, example_inputs) shows it all."
