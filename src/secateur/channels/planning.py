"""`plan_channels`: from a model, example inputs and an amount to a `Plan`. Nothing in the model changes here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

from torch import nn

from secateur.base import Amount, UsageError, named, require_module, unwrap, with_batch
from secateur.channels.budget import Budget
from secateur.channels.dissection import dissect
from secateur.channels.given import find_given
from secateur.channels.rounding import find_alignment
from secateur.channels.scores import ChannelScorer
from secateur.channels.select import by_amounts, find_cuttable, plan_of, select
from secateur.channels.target.importance import by_score, by_sensitivity
from secateur.channels.target.meet import Search, meet_target
from secateur.plans import Channels, Options, Plan, Target, Zeros, as_request


def plan_channels(
    model: nn.Module,
    example_inputs: Any,
    amount: Amount | Channels | Target | None = None,
    *,
    target: str | None = None,
    previous: Plan | None = None,
    progress: bool = True,
    **options: Unpack[Options],
) -> Plan:
    """Ranks the channels and heads of `model` and plans the removal of the `amount` that matters least.

    Args:
        model: stays as it is. Every group of coupled channels is found by running it once on `example_inputs`.
        example_inputs: a tensor, a tuple of arguments, or a dict of keyword arguments.
        amount: the share of channels to remove, such as 0.5 or "50%"; or all that is to be said, as
            `Channels(0.5, multiple_of=8)` or `Target("latency=0.5", runtime="openvino")`.
        target: instead, what is to be left: "latency=0.5" (of the dense model's), "latency=3ms", "macs=50%",
            "params=2M" or "size=4MB". A latency is measured.
        previous: the plan that made `model` what it is; what it removed counts in the amounts.
        progress: for a latency, False for silence.
        **options: those of `Channels` and `Target`: `scope`, `score`, `multiple_of`, `floor`, `keep`, `keep_indices`,
            `outputs`, `per_layer` and `data`; with an amount `iterations`; with a target `sensitivity`, and for a
            latency `runtime`, `batch` and `threads`.
    """
    request = _request(amount, target, options, previous)
    require_module(model)
    module = unwrap(model)
    if isinstance(request, Target) and request.batch is not None:
        example_inputs = with_batch(example_inputs, request.batch)
    dissection = dissect(module, example_inputs, [str(each) for each in request.outputs])
    given = find_given(dissection, request.score, request.keep_indices)
    scorer = ChannelScorer(module, dissection, request.score, request.data or (example_inputs,), given.scores)
    cuttable = find_cuttable(dissection, scorer, named("keep", request.keep, module), request.per_layer or {}, given)
    alignment = find_alignment(module, dissection, request.multiple_of, previous)
    budget = Budget(request.scope, alignment, request.floor)
    if isinstance(request, Channels):
        cuttable = cuttable.with_amount(request.amount, given)
        choose = by_amounts(cuttable, scorer, given, budget, request.iterations, previous)
        selection = select(dissection, cuttable, choose)
        plan = plan_of(selection, dissection, module, budget.scope, scorer.name, example_inputs)
        alignment.warn_of((previous.then(plan) if previous else plan).groups)
        return replace(plan, rounding=budget.rounding(selection.bundles, selection.shares))
    measured = request.sensitivity
    importance = by_score(dissection) if measured is None else by_sensitivity(measured, dissection)
    search = Search(dissection, module, example_inputs, cuttable, scorer, given, budget, importance)
    return meet_target(request, search, progress)


def _request(
    amount: Amount | Channels | Target | None, target: str | None, options: Mapping[str, Any], previous: Plan | None
) -> Channels | Target:
    if amount is not None and target is not None:
        raise UsageError("A target decides by itself how much goes; leave out the amount.")
    request = as_request(Channels, amount, options) if target is None else as_request(Target, target, options)
    if isinstance(request, Zeros):
        raise UsageError("Zeros leaves the channels as they are; hand it to plan_weights.")
    if previous is not None and not isinstance(previous, Plan):
        raise UsageError(f"previous is a {type(previous).__name__}; pass the Plan that was applied to the model.")
    if previous is not None and isinstance(request, Target):
        raise UsageError("A target is met from the model as it is; leave out previous.")
    return request
