"""`Pruner`: what a cut of the loop does. It ranks, and sets weights to zero or removes channels."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from accelerate.utils import send_to_device
from torch import nn

from secateur.base import SecateurWarning, UsageError
from secateur.channels import NothingToCut, SlowCounts, plan_channels, require_runtime
from secateur.loop.histogram import weight_histogram
from secateur.loop.repairs import Repairer
from secateur.loop.state import State
from secateur.loop.tuner import Tuner
from secateur.plans import Channels, Masks, Plan, Request, Schedule, Target, Zeros
from secateur.weights import NofM, parse_pattern, plan_weights

Planned = TypeVar("Planned", bound=Masks | Plan)


class Trained(Protocol):
    """A model that somebody trains: the `Tuner`, or a loop that is not ours."""

    @property
    def module(self) -> nn.Module: ...

    def agree(self, plan: Planned) -> Planned: ...

    def gradients(self) -> AbstractContextManager[None]: ...


class Pruner:
    """Every cut is planned on the model as it then is, and counts what earlier cuts removed."""

    def __init__(self, request: Request, schedule: Schedule, example_inputs: Any, trains_first: bool) -> None:
        if isinstance(request, Zeros):
            _require_zeros_schedule(request, schedule)
            if example_inputs is not None:
                raise UsageError(
                    "example_inputs belongs to channels and targets; single weights cannot use it, so leave it out."
                )
        else:
            _require_channel_schedule(request, schedule)
        self.request = request
        self.schedule = schedule
        self.trains_first = trains_first
        self._example_inputs = example_inputs
        self._checked: tuple[Request, Masks | Plan] | None = None

    def find_inputs(self, tuner: Tuner) -> None:
        """Those to run the model on; in every run at the same place, because it may draw random numbers."""
        if self._example_inputs is None and not isinstance(self.request, Zeros):
            self._example_inputs = tuner.example_inputs()

    def check(self, tuner: Trained) -> Masks | Plan:
        """Plans once on the model as it is, so that a call that cannot work fails before it has cost hours."""
        request = self.request
        if request.score == "taylor":
            request = replace(request, score="l1")  # there are no gradients yet
        if isinstance(request, Target) and request.parsed_goal.what == "latency":
            shared = {
                name: getattr(request, name)
                for name in ("score", "keep", "keep_indices", "per_layer", "multiple_of", "outputs", "data")
            }
            request = Channels(0.5, **shared)  # a latency takes minutes to meet, and weights that are trained
        final = request is self.request and self.schedule == "one-shot"
        with warnings.catch_warnings():
            if self.trains_first:
                warnings.simplefilter("ignore", SecateurWarning)  # the weights are not final
            planned = self._plan(tuner, request, State(), show=False, final=final)
        if not self.trains_first:
            self._checked = request, planned
        return planned

    def prune(self, tuner: Tuner, state: State, progress: float, show: bool, repairer: Repairer | None) -> State:
        """Ranks and prunes up to `progress` (0 to 1) of the way to the final amount. A search may `show` its steps, and
        a repairer gets the model as it was."""
        agreed = self.planned(tuner, state, progress, show)
        if agreed is None:
            return state
        histogram = weight_histogram(tuner.module, agreed) if progress >= 1 else state.histogram
        if repairer is not None:
            repairer.remember(tuner, state, agreed)
        if isinstance(agreed, Masks):
            tuner.enforce(agreed)
            return replace(state, masks=agreed, histogram=histogram)
        tuner.cut(agreed)
        return replace(state, plan=state.plan.then(agreed) if state.plan else agreed, histogram=histogram)

    def planned(self, tuner: Trained, state: State, progress: float, show: bool) -> Masks | Plan | None:
        """What every process cuts to get so far; None where so small a part of the amount removes no whole channel, and
        the next part will."""
        request = self.request.at(progress, self.schedule, state.plan)
        try:
            return tuner.agree(self._planned(tuner, request, state, show, final=progress >= 1))
        except NothingToCut:
            if progress >= 1 and state.plan is None:
                raise
            return None

    def _planned(self, tuner: Trained, request: Request, state: State, show: bool, final: bool) -> Masks | Plan:
        checked, self._checked = self._checked, None
        if state.untouched and checked is not None and checked[0] == request:
            return checked[1]
        with tuner.gradients() if request.score == "taylor" else nullcontext():
            return self._plan(tuner, request, state, show, final)

    def _plan(self, tuner: Trained, request: Request, state: State, show: bool, final: bool) -> Masks | Plan:
        if isinstance(request, Zeros):
            return plan_weights(tuner.module, request, previous=state.masks)
        previous = state.plan if isinstance(request, Channels) else None
        with warnings.catch_warnings():
            if not final:
                warnings.simplefilter("ignore", SlowCounts)  # nobody deploys what it leaves
            inputs = send_to_device(self._example_inputs, next(tuner.module.parameters()).device)
            return plan_channels(tuner.module, inputs, request, previous=previous, progress=show)


def _require_zeros_schedule(zeros: Zeros, schedule: Schedule) -> None:
    if schedule != "one-shot" and zeros.pattern is not None and isinstance(parse_pattern(zeros.pattern), NofM):
        raise UsageError(f'{zeros.pattern} is one cut and has no amounts between; use schedule="one-shot".')
    if schedule == "gradual" and zeros.score == "taylor":
        raise UsageError('The score "taylor" needs passes of its own; use schedule="one-shot" or "iterative".')


def _require_channel_schedule(request: Channels | Target, schedule: Schedule) -> None:
    if schedule == "gradual":
        raise UsageError('Channels go in whole cuts; use schedule="one-shot" or "iterative".')
    if schedule == "iterative" and (request.keep_indices or isinstance(request.score, Mapping)):
        raise UsageError('Numbers for each channel fit the model of the first cut alone; use schedule="one-shot".')
    if isinstance(request, Target):
        goal = request.parsed_goal
        require_runtime(goal, request.runtime, request.device)
        if schedule != "one-shot" and not goal.relative:
            raise UsageError(
                f"Several cuts share a target out as shares of the dense model; write {goal.what}=0.5, or use "
                'schedule="one-shot".'
            )
