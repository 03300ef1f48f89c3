"""From a goal to a plan: a search over predicted costs, and for a latency the stopwatch.

What a table of layers predicts for a whole network is off by a few per cent. So the candidate is cut and run in its
runtime beside the dense network, and the search is told how far off it was, until the measured time fits. The one that
fits is then timed again, on its own account: of several candidates, the noise favours the one that is chosen.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import nn

from secateur.base import SecateurError, SecateurWarning, batch_of, steps, working
from secateur.bench import Comparison, Timing, inputs_on, model_on
from secateur.channels.budget import Budget, allowed_steps, lowest_units, steps_for
from secateur.channels.costs import Costs, bytes_of, macs_of, parameters_of
from secateur.channels.dissection import Dissection
from secateur.channels.given import Given
from secateur.channels.scores import ChannelScorer
from secateur.channels.select import Cuttable, NothingToCut, Selection, plan_of, select
from secateur.channels.target.candidates import CUT, DENSE, Candidates, require_runtime
from secateur.channels.target.importance import Importance
from secateur.channels.target.latency import LatencyTable
from secateur.channels.target.search import Ladder, search_by_importance, search_uniformly
from secateur.channels.target.single_layer import place_of_layers
from secateur.channels.target.slots import layer_slots
from secateur.couple import Bundle, Ids
from secateur.plans import Goal, Outcome, Plan, Target, TargetUnreachable, quantity

# A latency is a ceiling: what fits is this share of it and not more, and the search aims at the middle of that.
_LEAST, _MIDDLE = 0.97, 0.985
_TOLERANCE = 0.05
_MOST_CANDIDATES = 8
_MOST_AIMS = 16
_MOST_STEPS_DOWN = 8
_CONFIRMATIONS = 5


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
        plan = plan_of(selection, self.dissection, self.module, scope, score, self.example_inputs)
        return replace(plan, rounding=self.budget.rounding(selection.bundles, selection.shares))

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


@dataclass(frozen=True, eq=False)
class _Attempt:
    """A candidate and how long it took."""

    goal: Goal
    plan: Plan
    shares: Mapping[int, float]
    predicted: float
    measured: Comparison
    again: Comparison | None = None
    """Timings of their own, once it was chosen: the one that was chosen by is the luckier the more were tried."""

    @property
    def timed(self) -> Comparison:
        return self.again or self.measured

    @property
    def above(self) -> float:
        """How far what was measured is above the ceiling, as a logarithm."""
        return _above(self.goal, self.timed)

    @property
    def error(self) -> float:
        """Likewise above the middle of what fits, where the search aims."""
        return self.above - math.log(_MIDDLE)

    @property
    def fits(self) -> bool:
        return math.log(_LEAST) <= self.above <= 0


def _above(goal: Goal, timed: Comparison) -> float:
    return math.log(_seconds(goal, timed[CUT]) / goal.absolute(_seconds(goal, timed[DENSE])))


def _seconds(goal: Goal, timing: Timing) -> float:
    """As a table shows what is asked for: a share is one of the undisturbed times, milliseconds are what a caller
    waits."""
    return timing.seconds if goal.relative else timing.median


def _meet_latency(target: Target, search: Search, progress: bool) -> Plan:
    goal, runtime = target.parsed_goal, target.runtime
    require_runtime(goal, runtime, target.device)
    slots = layer_slots(search.dissection)
    module, inputs = model_on(target.device, search.module), inputs_on(target.device, search.example_inputs)
    candidates = Candidates(module, inputs, runtime, target.threads)
    table = LatencyTable(runtime, target.threads, place_of_layers(module, runtime))
    with steps(len(table.families(slots)), f"timing layers in {runtime}", progress) as begin:
        table.measure(slots, begin)
    dense = _seconds(goal, candidates.time_dense()[DENSE])
    aim = _MIDDLE * _require_less(goal, dense)
    costs = table.costs(slots, dense / table.costs(slots).total({}))
    descent = _Descent(goal, search, candidates, costs, progress)
    best = descent.descend(aim, 0.995 * dense)
    where = f"{best.timed.place}, batch {batch_of(search.example_inputs)}"
    outcome = _outcome(best, descent.attempts, f"{candidates.runtime}, {best.timed.precision}, {where}")
    if best.above > 0 and not descent.can_go_lower:
        raise _unreachable(goal, outcome.reached, outcome.dense)
    if best.above > 0 or best.above < math.log1p(-_TOLERANCE):
        warnings.warn(
            f"The closest to {goal} that whole steps of channels allow is {quantity('latency', outcome.reached)}, "
            f"{outcome.reached / outcome.asked - 1:+.0%}; a smaller multiple_of makes the steps finer.",
            SecateurWarning,
            stacklevel=4,
        )
    return replace(best.plan, outcome=outcome)


@dataclass
class _Descent:
    """Cuts and times one candidate after the other, until one is at the ceiling or a little below it."""

    goal: Goal
    search: Search
    candidates: Candidates
    costs: Costs
    progress: bool
    attempts: list[_Attempt] = field(default_factory=list)
    can_go_lower: bool = True

    def descend(self, aim: float, highest: float) -> _Attempt:
        for _ in range(_MOST_AIMS):
            selection = self.search.select(self.costs, aim)
            if any(attempt.shares == selection.shares for attempt in self.attempts):
                if (finer := self.search.budget.finer()) is None:
                    break
                self.search = replace(self.search, budget=finer)
                continue
            if len(self.attempts) >= _MOST_CANDIDATES and self._met:
                break
            attempt = self._try(selection, aim)
            if attempt.fits or (not self.can_go_lower and attempt.above > 0):
                break
            aim = min(_next_aim(self.attempts), highest)
        return self._best()

    @property
    def _met(self) -> bool:
        return any(attempt.above <= 0 for attempt in self.attempts)

    def _try(self, selection: Selection, aim: float) -> _Attempt:
        plan, predicted = self.search.plan(selection), self.costs.total(selection.shares)
        self.can_go_lower = predicted <= aim
        with working(f"timing candidate {len(self.attempts) + 1} in {self.candidates.runtime}", self.progress):
            measured = self.candidates.time(plan)
        self.attempts.append(_Attempt(self.goal, plan, selection.shares, predicted, measured))
        return self._confirmed(self.attempts[-1]) if self.attempts[-1].fits else self.attempts[-1]

    def _confirmed(self, attempt: _Attempt) -> _Attempt:
        """With the middle one of several more timings, in the place of the attempt."""
        if attempt.again is not None:
            return attempt
        number = self.attempts.index(attempt)
        with working(f"confirming candidate {number + 1} in {self.candidates.runtime}", self.progress):
            timed = self.candidates.time_again(attempt.plan, _CONFIRMATIONS)
        sure = replace(attempt, again=sorted(timed, key=partial(_above, self.goal))[_CONFIRMATIONS // 2])
        self.attempts[number] = sure
        return sure

    def _best(self) -> _Attempt:
        """The slowest that is confirmed not to be above the ceiling. Where there is none, it goes further down."""
        best = self._slowest_sure()
        for _ in range(_MOST_STEPS_DOWN):
            if best.above <= 0 or not self.can_go_lower:
                break
            aim = min(attempt.predicted for attempt in self.attempts) * math.exp(-best.error)
            self._try(self.search.select(self.costs, aim), aim)
            best = self._slowest_sure()
        return best

    def _slowest_sure(self) -> _Attempt:
        for attempt in sorted(self.attempts, key=lambda each: -each.above):
            if attempt.above <= 0 and (sure := self._confirmed(attempt)).above <= 0:
                return sure
        return self._confirmed(min(self.attempts, key=lambda each: each.above))


def _next_aim(attempts: Sequence[_Attempt]) -> float:
    """What to predict so that the measured latency is right, as far as the attempts tell."""
    above = [attempt for attempt in attempts if attempt.error > 0]
    below = [attempt for attempt in attempts if attempt.error <= 0]
    if not above or not below:
        return attempts[-1].predicted * math.exp(-attempts[-1].error)
    high, low = min(above, key=lambda each: each.predicted), max(below, key=lambda each: each.predicted)
    way = -low.error / (high.error - low.error)
    return math.exp((1 - way) * math.log(low.predicted) + way * math.log(high.predicted))


def _outcome(best: _Attempt, attempts: Sequence[_Attempt], measured_in: str) -> Outcome:
    goal, timed = best.goal, best.timed
    dense, reached = _seconds(goal, timed[DENSE]), _seconds(goal, timed[CUT])
    low, high = (bound / timed[CUT].ratio * reached for bound in (timed[CUT].low, timed[CUT].high))
    noise = timed.control.low, timed.control.ratio, timed.control.high
    asked = goal.absolute(dense)
    # Each was measured beside the dense model at its own time, and they are told beside the one of this timing.
    tried = {attempt.predicted: asked * math.exp(_above(goal, attempt.measured)) for attempt in attempts}
    seconds = dense, asked, best.predicted, reached, low, high
    return Outcome(goal.text, goal.what, *seconds, noise, measured_in, tuple(tried.items()))


def _require_less(goal: Goal, dense: float) -> float:
    asked = goal.absolute(dense)
    if asked >= dense:
        raise NothingToCut(
            f"The target {goal} is met without any cut: the model has {quantity(goal.what, dense)}. Ask for less."
        )
    return asked


def _unreachable(goal: Goal, closest: float, dense: float) -> SecateurError:
    return TargetUnreachable(
        f"The target {goal} cannot be reached: with every group at its floor, {quantity(goal.what, closest)} are left "
        f"({closest / dense:.2f} × dense). Ask for that, lower `floor`, or see secateur.inspect for what cannot be cut."
    )
