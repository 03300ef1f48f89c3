"""From a goal to a plan: a search over predicted costs, and for a latency the stopwatch.

What a table of layers predicts for a whole network is off by a few per cent. So the candidate is cut and run in its
runtime beside the dense network, and the search is told how far off it was, until the measured time fits.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from secateur.base import SecateurError, SecateurWarning, UsageError, batch_of, steps, threads_text, working
from secateur.bench import Comparison
from secateur.channels.budget import Budget, allowed_steps, lowest_units, steps_for
from secateur.channels.costs import Costs, bytes_of, macs_of, parameters_of
from secateur.channels.dissection import Dissection
from secateur.channels.given import Given
from secateur.channels.scores import ChannelScorer
from secateur.channels.select import Cuttable, Selection, plan_of, select
from secateur.channels.target.candidates import CUT, DENSE, Candidates, require_runtime
from secateur.channels.target.importance import Importance
from secateur.channels.target.latency import LatencyTable
from secateur.channels.target.search import Ladder, search_by_importance, search_uniformly
from secateur.channels.target.slots import layer_slots
from secateur.couple import Bundle, Ids
from secateur.plans import Goal, Outcome, Plan, Target, TargetUnreachable, quantity

_TOLERANCE = 0.05
_GOOD_ENOUGH = 0.02
_MOST_CANDIDATES = 6
_MOST_AIMS = 12


@dataclass(frozen=True)
class Search:
    """Chooses by predicted costs how much of each group goes."""

    dissection: Dissection
    module: nn.Module
    example_inputs: Any
    cuttable: Cuttable
    scorer: ChannelScorer
    given: Given
    budget: Budget
    importance: Importance

    def select(self, costs: Costs, most: float) -> Selection:
        """The lowest-scoring units of every group, as many as it takes to leave at most `most` of the cost."""
        return select(self.dissection, self.cuttable, lambda bundles: self._choose(bundles, costs, most))

    def plan(self, selection: Selection) -> Plan:
        scope, score = self.budget.scope, self.scorer.name
        return plan_of(selection, self.dissection, self.module, scope, score, self.example_inputs)

    def _choose(self, bundles: Sequence[Bundle], costs: Costs, most: float) -> Ids:
        self.given.require(bundles, self.dissection)
        scores = self.scorer.scores_of(bundles)
        ladders = [Ladder(bundle, self._rungs(bundle), self.importance(bundle, scores)) for bundle in bundles]
        search = search_uniformly if self.budget.scope == "layer" else search_by_importance
        return lowest_units(search(ladders, costs, most), scores)

    def _rungs(self, bundle: Bundle) -> list[int]:
        """Only one where the user said how much."""
        if bundle in self.given.steps:
            return [self.given.steps[bundle]]
        amount = self.cuttable.amounts.get(bundle)
        return allowed_steps(bundle, self.budget) if amount is None else [steps_for(bundle, amount, self.budget)]


def meet_target(target: Target, search: Search, progress: bool) -> Plan:
    """The plan that meets the target, with the outcome in it."""
    goal = target.parsed_goal
    if goal.what == "latency":
        return _meet_latency(target, search, progress)
    costs = _counted(goal, search)
    dense = costs.total({})
    asked = _require_less(goal, dense)
    selection = search.select(costs, asked)
    left = costs.total(selection.shares)
    if left > asked:
        raise _unreachable(goal, left, dense)
    return replace(search.plan(selection), outcome=Outcome(goal.text, goal.what, dense, asked, left, left))


def _counted(goal: Goal, search: Search) -> Costs:
    if goal.what == "macs":
        return macs_of(search.dissection)
    return (parameters_of if goal.what == "params" else bytes_of)(search.dissection, search.module)


@dataclass(frozen=True)
class _Attempt:
    plan: Plan
    shares: Mapping[int, float]
    aim: float
    predicted: float
    wanted: float
    measured: Comparison

    @property
    def error(self) -> float:
        """How far what was measured is above what is wanted, as a logarithm."""
        return math.log(self.seconds / self.wanted)

    @property
    def seconds(self) -> float:
        return self.measured[CUT].seconds


def _meet_latency(target: Target, search: Search, progress: bool) -> Plan:
    goal, runtime = target.parsed_goal, target.runtime
    require_runtime(goal, runtime)
    slots = layer_slots(search.dissection)
    candidates = Candidates(search.module, search.example_inputs, runtime, target.threads)
    table = LatencyTable(runtime, target.threads)
    with steps(len(table.families(slots)), f"timing layers in {runtime}", progress) as begin:
        table.measure(slots, begin)
    dense = candidates.time_dense()[DENSE].seconds
    aim = _require_less(goal, dense)
    costs = table.costs(slots, dense / table.costs(slots).total({}))
    attempts: list[_Attempt] = []
    reached = True
    for _ in range(_MOST_AIMS):
        selection = search.select(costs, aim)
        predicted = costs.total(selection.shares)
        known = next((attempt for attempt in attempts if attempt.shares == selection.shares), None)
        if known is not None:
            attempts.append(replace(known, aim=aim))
        elif len({attempt.predicted for attempt in attempts}) == _MOST_CANDIDATES:
            break
        else:
            plan = search.plan(selection)
            with working(f"timing candidate {len(attempts) + 1} in {runtime}", progress):
                measured = candidates.time(plan)
            wanted = goal.absolute(measured[DENSE].seconds)
            attempts.append(_Attempt(plan, selection.shares, aim, predicted, wanted, measured))
        reached = predicted <= aim
        if abs(attempts[-1].error) <= _GOOD_ENOUGH or (not reached and attempts[-1].error > 0):
            break
        aim = min(_next_aim(attempts), 0.995 * dense)
    best = min(attempts, key=lambda attempt: abs(attempt.error))
    where = f"{threads_text(target.threads)}, batch {batch_of(search.example_inputs)}"
    outcome = _outcome(goal, best, attempts, f"{candidates.runtime}, {best.measured.precision}, {where}")
    if best.error > math.log1p(_TOLERANCE) and not reached:
        raise _unreachable(goal, outcome.reached, outcome.dense)
    if abs(best.error) > math.log1p(_TOLERANCE):
        warnings.warn(
            f"The closest to {goal} that whole steps of channels allow is {quantity('latency', outcome.reached)}, "
            f"{outcome.reached / outcome.asked - 1:+.0%}; a smaller multiple_of makes the steps finer.",
            SecateurWarning,
            stacklevel=4,
        )
    return replace(best.plan, outcome=outcome)


def _next_aim(attempts: Sequence[_Attempt]) -> float:
    """Where the measured latency should be right, as far as the attempts tell."""
    above = [attempt for attempt in attempts if attempt.error > 0]
    below = [attempt for attempt in attempts if attempt.error <= 0]
    if not above or not below:
        return attempts[-1].aim * math.exp(-attempts[-1].error)
    high, low = min(above, key=lambda each: each.aim), max(below, key=lambda each: each.aim)
    # A straight line first; once that leads nowhere new, halves.
    way = -low.error / (high.error - low.error) if len(attempts) <= _MOST_CANDIDATES else 0.5
    return math.exp((1 - way) * math.log(low.aim) + way * math.log(high.aim))


def _outcome(goal: Goal, best: _Attempt, attempts: Sequence[_Attempt], measured_in: str) -> Outcome:
    dense, cut, control = best.measured[DENSE].seconds, best.measured[CUT], best.measured.control
    seconds = dense, best.wanted, best.predicted, best.seconds, cut.low * dense, cut.high * dense
    noise = control.low, control.ratio, control.high
    tried = tuple(dict.fromkeys((attempt.predicted, attempt.seconds) for attempt in attempts))
    return Outcome(goal.text, goal.what, *seconds, noise, measured_in, tried)


def _require_less(goal: Goal, dense: float) -> float:
    asked = goal.absolute(dense)
    if asked >= dense:
        raise UsageError(
            f"The target {goal} is met without any cut: the model has {quantity(goal.what, dense)}. Ask for less."
        )
    return asked


def _unreachable(goal: Goal, closest: float, dense: float) -> SecateurError:
    return TargetUnreachable(
        f"The target {goal} cannot be reached: with every group at its floor, {quantity(goal.what, closest)} are left "
        f"({closest / dense:.2f} × dense). Ask for that, lower `floor`, or see secateur.inspect for what cannot be cut."
    )
