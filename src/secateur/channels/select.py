"""Which units of a dissected model go, and the plan of them: `find_cuttable`, then `select`, then `plan_of`.

Each takes plain data and gives plain data; nothing in the model changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from torch import nn

from secateur.base import Amount, LeftAlone, UsageError, first_match, matches_any, parse_amount, require_known, some_of
from secateur.capture import Attribute, Trace, looks_at_values_of, numbers_of
from secateur.channels.budget import NO_UNITS, Budget, choose_steps, lowest_units
from secateur.channels.costs import Costs, macs_of, parameters_of
from secateur.channels.dissection import Dissection
from secateur.channels.given import Given
from secateur.channels.scores import ChannelScorer
from secateur.couple import Bundle, Conflict, Ids
from secateur.plans import GroupCut, ListCut, Plan, TensorCut, form_of

Choose = Callable[[Sequence[Bundle]], Ids]
"""From the bundles that may be cut to the units that go."""


class NothingToCut(UsageError):
    """No channel can be removed, or the amount is too small to remove one."""


@dataclass(frozen=True)
class Cuttable:
    """What the options leave to be cut."""

    bundles: tuple[Bundle, ...]
    amounts: Mapping[Bundle, float]
    """How much of a bundle is to go, where that was said."""
    left_alone: tuple[LeftAlone, ...]

    def with_amount(self, amount: Amount | None, given: Given) -> Cuttable:
        """The same with this amount for every bundle of which nothing else was said."""
        if amount is None and not self.amounts and not given.steps:
            raise UsageError('Say how much to remove, such as 0.5 for half of the channels, or target="latency=0.5".')
        share = 0.0 if amount is None else parse_amount(amount)
        return replace(self, amounts={**dict.fromkeys(self.bundles, share), **self.amounts})


@dataclass(frozen=True)
class Selection:
    """Which units go, and what follows from that."""

    bundles: tuple[Bundle, ...]
    """Those that the code's sizes allow to be cut."""
    dead: Ids
    attributes: Mapping[Attribute, int]
    """The sizes in the code that change, with their new values."""
    shares: Mapping[int, float]
    """What is left of each group that loses something, by its index."""
    left_alone: tuple[LeftAlone, ...]


def find_cuttable(
    dissection: Dissection, scorer: ChannelScorer, keep: Sequence[str], per_layer: Mapping[str, Amount], given: Given
) -> Cuttable:
    """The bundles without what is to be kept and what the score cannot rank."""
    require_known("keep", keep, dissection.parameter_names)
    require_known("per_layer", per_layer, dissection.parameter_names)
    bundles, left_alone = [], list(dissection.left_alone)
    for bundle in dissection.bundles:
        kept = {"named in keep" for group in bundle.groups if matches_any(keep, dissection.producer_names([group]))}
        reasons = kept or {reason for group in bundle.groups if (reason := scorer.applies_to(group))}
        left_alone += [LeftAlone(dissection.name(bundle.groups[0]), reason) for reason in reasons]
        if not reasons:
            bundles.append(bundle)
    own = {bundle: first_match(per_layer, dissection.producer_names(bundle.groups)) for bundle in bundles}
    amounts = {bundle: parse_amount(amount) for bundle, amount in own.items() if amount is not None}
    cuttable = Cuttable(tuple(bundles), amounts, tuple(left_alone))
    for option, patterns in (("per_layer", per_layer), *given.layers.items()):
        _require_cuttable(option, patterns, cuttable, dissection)
    return cuttable


def _require_cuttable(option: str, patterns: Iterable[str], cuttable: Cuttable, dissection: Dissection) -> None:
    """What is said of a layer that cannot be cut would be ignored in silence."""
    names = dissection.producer_names(group for bundle in cuttable.bundles for group in bundle.groups)
    for pattern in patterns:
        if not matches_any([pattern], names):
            reasons = [item.reason for item in cuttable.left_alone if matches_any([pattern], [f"{item.name}.weight"])]
            why = f": {reasons[0]}" if reasons else "; it makes no channels of its own"
            raise NothingToCut(f"{option} names {pattern!r}, which cannot be cut{why}. Leave it out.")


def by_amounts(
    cuttable: Cuttable, scorer: ChannelScorer, given: Given, budget: Budget, iterations: int, previous: Plan | None
) -> Choose:
    """Chooses the lowest-scoring units, as many as the amounts say, ranked again in every iteration."""
    before = {group.name: group.before for group in previous.groups} if previous else {}

    def share(bundle: Bundle, amount: float) -> float:
        """Of the bundle as it is now, what has to go so that `amount` of the bundle as it was is gone."""
        group = bundle.groups[0]
        return 1 - (1 - amount) * before.get(scorer.dissection.name(group), len(group)) / len(group)

    def choose(bundles: Sequence[Bundle]) -> Ids:
        given.require(bundles, scorer.dissection)
        dead = NO_UNITS
        asked = {bundle: cuttable.amounts[bundle] for bundle in bundles if bundle not in given.steps}
        for i in range(1, iterations + 1):
            shares = {bundle: share(bundle, 1 - (1 - amount) ** (i / iterations)) for bundle, amount in asked.items()}
            scores = scorer.scores_of(bundles, dead)
            steps = {**choose_steps(asked, shares, scores, dead, budget), **given.steps}
            dead = lowest_units({bundle: steps[bundle] for bundle in bundles}, scores, dead)
        return dead

    return choose


def select(dissection: Dissection, cuttable: Cuttable, choose: Choose) -> Selection:
    """Lets `choose` say which units go. What the sizes in the code then refuse is left alone, with the reason."""
    bundles, left_alone = list(cuttable.bundles), list(cuttable.left_alone)
    while bundles:
        dead = choose(bundles)
        try:
            attributes = _solve(dissection, bundles, dead)
        except Conflict as conflict:
            dropped = _smallest_in(conflict, bundles, dissection)
            reason = str(conflict.constraint.reason)
            left_alone += [LeftAlone(dissection.name(group), reason) for group in dropped.groups]
            bundles.remove(dropped)
        else:
            if not len(dead):
                break
            shares = _shares_left(dissection, bundles, dead)
            asked = [bundle.groups[0] for bundle in bundles if cuttable.amounts.get(bundle, 0) > 0]
            left_alone += [
                LeftAlone(dissection.name(group), "the amount rounds to none of its units")
                for group in asked
                if group.index not in shares
            ]
            return Selection(tuple(bundles), dead, attributes, shares, tuple(left_alone))
    raise NothingToCut(_nothing(bundles, left_alone))


def _shares_left(dissection: Dissection, bundles: Iterable[Bundle], dead: Ids) -> dict[int, float]:
    gone = np.zeros(dissection.coupling.units.count, bool)
    gone[dead] = True
    lost = {group: int(gone[group.units].sum()) for bundle in bundles for group in bundle.groups}
    return {group.index: 1 - count / len(group) for group, count in lost.items() if count}


def _solve(dissection: Dissection, bundles: Iterable[Bundle], dead: Ids) -> dict[Attribute, int]:
    removal = dissection.removal(dead)
    changed = sorted({count for bundle in bundles for group in bundle.groups for count in group.counted_by})
    return dissection.system.solve(changed, lambda count: removal.count(dissection.count_axes[count]))


def _smallest_in(conflict: Conflict, bundles: Iterable[Bundle], dissection: Dissection) -> Bundle:
    """The smallest bundle whose units the conflict counts."""
    system = dissection.system
    counts = {count for i in system.near(conflict) for count in system.counts[i]}
    guilty = [b for b in bundles if any(group.counted_by & counts for group in b.groups)]
    return min(guilty, key=lambda bundle: bundle.units)


def _nothing(bundles: Sequence[Bundle], left_alone: Sequence[LeftAlone]) -> str:
    if not left_alone:
        return "The amount is too small to remove a single channel; ask for more, or for a smaller multiple_of."
    reasons = some_of([f"{item.name}: {item.reason}" for item in left_alone], between="; ")
    if bundles:
        return f"The amount is too small to remove a single channel of any group. Left alone: {reasons}."
    return f"Nothing in the model can be cut: {reasons}. secateur.inspect(model, example_inputs) shows it all."


def plan_of(
    selection: Selection, dissection: Dissection, module: nn.Module, scope: str, score: str, example_inputs: Any
) -> Plan:
    """What the selection means for tensors, sizes and costs."""
    trace, free = dissection.trace, dissection.coupling.free_outputs
    costs = (parameters_of(dissection, module), macs_of(dissection))
    parameters, macs = (round(cost.total({})) for cost in costs)
    tensors = _tensor_cuts(selection, dissection)
    lists = _list_cuts(selection, dissection)
    lengths = {
        at: (cut.length, len(cut.kept)) for path, cut in lists.items() for at in dissection.lengths.get(path, ())
    }
    return Plan(
        tensors=tensors,
        attributes={key: (trace.attributes[key], value) for key, value in selection.attributes.items()} | lengths,
        groups=tuple(_group_cuts(selection, dissection, costs)),
        left_alone=selection.left_alone,
        parameters=(parameters, parameters - _parameters_lost(tensors, dissection)),
        macs=(macs, round(costs[1].total(selection.shares))),
        output_shapes=tuple(output.value.shape for output in trace.outputs if not output.in_training),
        free_outputs=tuple(output.path for output in free if not output.in_training) or None,
        scope=scope,
        score=score,
        lists=lists or None,
        looks_at_weights=_looks_at_weights(trace, tensors) or None,
        example_form=form_of(example_inputs),
        example_inputs=example_inputs,
        constants=numbers_of(trace.calls[: trace.example_calls]) | _followed_numbers(selection, dissection),
        operators=trace.example_calls,
    )


def _parameters_lost(tensors: Mapping[str, TensorCut], dissection: Dissection) -> int:
    """Which experts go decides how many, where they are not of one size."""
    cuts = (tensors[leaf.name] for leaf in dissection.leaves if leaf.kind == "parameter" and leaf.name in tensors)
    return sum(prod(cut.shape) - prod(cut.new_shape) for cut in cuts)


def _followed_numbers(selection: Selection, dissection: Dissection) -> frozenset[str]:
    """Numbers in the arithmetic that become others by the plan, such as how many experts there are to count."""
    removal = dissection.removal(selection.dead)
    return frozenset(
        f"{dissection.trace.calls[call].op}({each.argument}={removal.count(each.axis) - each.less})"
        for call, numbers in dissection.coupling.positions.numbers.items()
        for each in numbers
    )


def _looks_at_weights(trace: Trace, tensors: Mapping[str, TensorCut]) -> bool:
    """Whether the example pass looks at values that follow from the weights which are cut."""
    weights = [leaf for leaf in trace.leaves if leaf.kind in ("parameter", "buffer") and leaf.name in tensors]
    return looks_at_values_of(weights, trace.calls[: trace.example_calls], trace.views, trace.conjured)


def _tensor_cuts(selection: Selection, dissection: Dissection) -> dict[str, TensorCut]:
    removal, cuts = dissection.removal(selection.dead), {}
    for leaf in dissection.leaves:
        place = dissection.place_in_list(leaf)
        if place is not None and not removal.alive(place[0])[place[1]]:
            cuts[leaf.name] = TensorCut(leaf.shape, {0: NO_UNITS})
            continue
        shrinking = [(d, a) for d, a in enumerate(dissection.coupling.axes(leaf)) if removal.count(a) < a.shape[1]]
        kept = {d: np.flatnonzero(removal.alive(axis)) for d, axis in shrinking}
        if kept:
            cuts[leaf.name] = TensorCut(leaf.shape, kept)
    return cuts


def _list_cuts(selection: Selection, dissection: Dissection) -> dict[str, ListCut]:
    removal = dissection.removal(selection.dead)
    alive = {path: removal.alive(axis) for path, axis in dissection.coupling.modules.items()}
    return {path: ListCut(len(flags), np.flatnonzero(flags)) for path, flags in alive.items() if not flags.all()}


def _group_cuts(selection: Selection, dissection: Dissection, costs: Sequence[Costs]) -> Iterable[GroupCut]:
    removal = dissection.removal(selection.dead)
    for group in (group for bundle in selection.bundles for group in bundle.groups):
        left = selection.shares.get(group.index)
        places = [dissection.place_in_list(member.leaf) for member in group.members]
        goes_whole = all(place is not None and not removal.alive(place[0])[place[1]] for place in places)
        if left is not None and not goes_whole:
            saved = (round(cost.saved({group.index: left})) for cost in costs)
            yield GroupCut(*dissection.told(group), len(group), round(left * len(group)), *saved)
