"""What a cut of the loop does: `WeightPruner` sets weights to zero, `ChannelPruner` removes channels."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from torch import nn

from secateur.base import Amount, SecateurWarning, UsageError, parse_amount
from secateur.channels import Goal, NothingToCut, parse_goal, plan_channels, require_runtime
from secateur.loop.agenda import Schedule, amount_at
from secateur.loop.histogram import weight_histogram
from secateur.loop.tuner import Tuner
from secateur.plans import Plan
from secateur.weights import NofM, Ranking, parse_pattern, plan_weights

__all__ = ["ChannelPruner", "Pruner", "WeightPruner", "require_channel_options"]


class Pruner(Protocol):
    def rehearse(self, tuner: Tuner) -> None:
        """Plans once on the model as it is, so that a call that cannot work fails before it has cost hours."""

    def prune(self, tuner: Tuner, progress: float) -> None:
        """Ranks and prunes up to `progress` (0 to 1) of the way to the final amount."""


class WeightPruner:
    """Unstructured and N:M pruning."""

    def __init__(self, model: nn.Module, amount: Amount | None, ranking: Ranking, schedule: Schedule) -> None:
        for option in ("multiple_of", "floor", "runtime", "batch", "threads"):
            if option in ranking:
                raise UsageError(f"{option} belongs to channels=…; zeros have no channels to count.")
        self.amount = amount
        self.ranking = ranking
        self.schedule = schedule
        self._plan_once(model)

    def rehearse(self, tuner: Tuner) -> None:
        """Done already: it needs the model alone."""

    def prune(self, tuner: Tuner, progress: float) -> None:
        options = options_at(self.amount, self.ranking, self.schedule, progress)
        with scored(tuner, self.ranking):
            masks = tuner.agree(plan_weights(tuner.module, previous=tuner.masks, **options))
        if progress >= 1:
            tuner.histogram = weight_histogram(tuner.module, masks)
        tuner.enforce(masks)

    def _plan_once(self, model: nn.Module) -> None:
        pattern, ranking = self.ranking.get("pattern"), self.ranking
        if self.schedule != "one-shot" and pattern is not None and isinstance(parse_pattern(pattern), NofM):
            raise UsageError(f'{pattern} is one cut and has no amounts between; use schedule="one-shot".')
        if ranking.get("score") == "taylor":
            if self.schedule == "gradual":
                raise UsageError('The score "taylor" needs passes of its own; use schedule="one-shot" or "iterative".')
            ranking = {**ranking, "score": "l1"}  # there are no gradients yet
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecateurWarning)  # the weights are not final
            plan_weights(model, self.amount, **ranking)  # type: ignore[misc]


class ChannelPruner:
    """Structured pruning. Every cut is planned on the model as it then is, and counts what earlier cuts removed."""

    def __init__(
        self,
        amount: Amount | None,
        ranking: Ranking,
        schedule: Schedule,
        example_inputs: Any,
        target: str | None = None,
    ) -> None:
        self.amount = amount
        self.target = target
        self.ranking = ranking
        self.schedule = schedule
        self.example_inputs = example_inputs
        if target is not None:
            goal = parse_goal(target)
            require_runtime(goal, ranking.get("runtime", "eager"))
            if schedule != "one-shot" and not goal.relative:
                raise UsageError(
                    f"Several cuts share a target out as shares of the dense model; write {goal.what}=0.5, or use "
                    'schedule="one-shot".'
                )

    def rehearse(self, tuner: Tuner) -> None:
        if self.example_inputs is None:
            self.example_inputs = tuner.example_inputs()
        ranking = self.ranking
        if ranking.get("score") == "taylor":
            ranking = {**ranking, "score": "l1"}  # there are no gradients yet
        amount = 0.5 if self.target else self.amount  # a latency takes minutes to meet, and weights that are trained
        plan_channels(tuner.module, self.example_inputs, amount, **ranking)  # type: ignore[misc]

    def prune(self, tuner: Tuner, progress: float) -> None:
        if self.target is not None:
            target = self._target_at(progress, tuner.plan)
            options: dict[str, Any] = {**self.ranking, "target": target, "progress": False}
        else:
            options = {**options_at(self.amount, self.ranking, self.schedule, progress), "previous": tuner.plan}
        try:
            with scored(tuner, self.ranking):
                plan = plan_channels(tuner.module, self.example_inputs, **options)
        except NothingToCut:
            if progress >= 1 and tuner.plan is None:
                raise
            return  # so small a part of the amount removes no whole channel; the next part will
        agreed = tuner.agree(plan)
        if progress >= 1:
            tuner.histogram = weight_histogram(tuner.module, agreed)
        tuner.cut(agreed)

    def _target_at(self, progress: float, previous: Plan | None) -> Goal:
        """What is to be left after this part of the way."""
        dense = previous.outcome.dense if previous is not None and previous.outcome is not None else None
        return parse_goal(str(self.target)).at(progress, dense)


def scored(tuner: Tuner, ranking: Ranking) -> AbstractContextManager[None]:
    return tuner.gradients() if ranking.get("score") == "taylor" else nullcontext()


def require_channel_options(amount: Amount | None, schedule: Schedule, ranking: Ranking) -> None:
    if amount is not None:
        raise UsageError("Give either an amount of weights or channels=…, not both; prune a result again for both.")
    for option in ("pattern", "include"):
        if ranking.get(option):
            raise UsageError(f"{option} belongs to single weights and cannot go with channels=…; leave it out.")
    if schedule == "gradual":
        raise UsageError('Channels go in whole cuts; use schedule="one-shot" or "iterative".')


def options_at(amount: Amount | None, ranking: Ranking, schedule: Schedule, progress: float) -> dict[str, Any]:
    """The arguments of a plan when `progress` of the way to the final amounts is gone."""
    options: dict[str, Any] = dict(ranking)
    if amount is not None:
        options["amount"] = amount_at(schedule, parse_amount(amount), progress)
    if per_layer := ranking.get("per_layer"):
        options["per_layer"] = {
            pattern: amount_at(schedule, parse_amount(own), progress) for pattern, own in per_layer.items()
        }
    return options
