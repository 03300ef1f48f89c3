"""`plan_channels`: from a model, example inputs and an amount to a `Plan`. Nothing in the model changes here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from secateur.base import (
    Amount,
    UsageError,
    batch_of,
    cache_folder,
    listed,
    require_module,
    require_one_of,
    unwrap,
    with_batch,
)
from secateur.channels.budget import Budget
from secateur.channels.dissection import dissect
from secateur.channels.given import find_given
from secateur.channels.rounding import find_alignment
from secateur.channels.scores import ChannelScorer
from secateur.channels.select import NothingToCut, by_amounts, find_cuttable, plan_of, select
from secateur.channels.sensitivity_curves import Sensitivity
from secateur.channels.target.goal import Goal, parse_goal
from secateur.channels.target.importance import by_score, by_sensitivity
from secateur.channels.target.meet import Bench, Search, meet_goal
from secateur.plans import Plan
from secateur.weights import Score

__all__ = ["NothingToCut", "plan_channels"]


def plan_channels(
    model: nn.Module,
    example_inputs: Any,
    amount: Amount | None = None,
    *,
    target: str | Goal | None = None,
    scope: Literal["layer", "global"] | None = None,
    score: Score | Mapping[str, Sequence[float] | Tensor] = "l1",
    multiple_of: int | None = None,
    keep: Sequence[str | nn.Module] = (),
    keep_indices: Mapping[str, Sequence[int]] | None = None,
    per_layer: Mapping[str, Amount] | None = None,
    iterations: int = 1,
    floor: float = 0.1,
    data: Iterable[Any] = (),
    previous: Plan | None = None,
    runtime: str = "eager",
    batch: int | None = None,
    threads: int = 1,
    sensitivity: Sensitivity | None = None,
    progress: bool = True,
) -> Plan:
    """Ranks the channels and heads of `model` and plans the removal of the `amount` that matters least.

    Args:
        model: stays as it is. Every group of coupled channels is found by running it once on `example_inputs`.
        example_inputs: a tensor, a tuple of arguments, or a dict of keyword arguments.
        amount: the share of channels to remove, such as 0.5 or "50%".
        target: instead, what is to be left: "latency=0.5" (of the dense model's), "latency=3ms", "macs=50%",
            "params=2M" or "size=4MB". A latency is measured, in `runtime`.
        scope: "layer" removes the same share of every group; "global" ranks all groups together, each group's scores
            divided by their mean so that layers compare. With an amount the default is "layer", with a target
            "global": the least importance for what is saved.
        score: "l1", "l2", "batch-norm", "taylor" (needs gradients), "activation" (runs the model on `data`), "random",
            or a function of a weight's name and values. Or a dict from layers to one number for each output channel,
            such as {"conv1": tensor_of_32}; layers that are not named are scored by "l1".
        multiple_of: round the channels that stay to multiples of this, in every group. By default to what hardware
            likes: 16 from 64 channels on, 8 from 32 on, and at least 4 in depthwise convolutions.
        keep: layers, as modules or by name with wildcards, that keep all of their own channels; their inputs may still
            shrink.
        keep_indices: the very output channels that stay, by layer, such as {"conv1": [0, 3, 5]}; coupled layers
            follow. Without an amount, nothing else is cut.
        per_layer: amounts for single layers, by name or wildcard; the first that fits counts.
        iterations: rank again after every so many-th part of the amount, over what is then left.
        floor: with scope "global" or a target, the share of every group that stays at least; one unit always stays.
        data: inputs for "activation", each like `example_inputs`; the example alone by default.
        previous: the plan that made `model` what it is; what it removed counts in the amounts.
        runtime: for a latency: "eager", "compile", "onnxruntime" or "openvino".
        batch: for a latency, if not that of `example_inputs`.
        threads: for a latency; one thread is timed by its CPU time, several by the wall clock.
        sensitivity: for a target, what `secateur.sensitivity` measured: the search then weighs the metric that each
            group costs, instead of scores.
        progress: for a latency, False for silence.
    """
    _require_options(amount, target, scope, iterations, data, previous)
    require_module(model)
    module = unwrap(model)
    if batch is not None:
        example_inputs = with_batch(example_inputs, batch)
    dissection = dissect(module, example_inputs)
    given = find_given(dissection, score, keep_indices)
    scorer = ChannelScorer(module, dissection, score, data or (example_inputs,), given.scores)
    cuttable = find_cuttable(dissection, scorer, listed("keep", keep, module), per_layer or {}, given)
    alignment = find_alignment(module, dissection, multiple_of, previous)
    budget = Budget(scope or ("layer" if target is None else "global"), alignment, floor)
    make_plan = partial(
        plan_of,
        dissection=dissection,
        module=module,
        scope=budget.scope,
        score=scorer.name,
        example_inputs=example_inputs,
    )
    if target is None:
        cuttable = cuttable.with_amount(amount, given)
        choose = by_amounts(cuttable.amounts, scorer, given, budget, iterations, previous)
        plan = make_plan(select(dissection, cuttable, choose))
        alignment.warn_of(plan.groups)
        return plan
    importance = by_score(dissection) if sensitivity is None else by_sensitivity(sensitivity, dissection)
    bench = Bench(runtime, threads, batch_of(example_inputs), example_inputs, cache_folder(), progress)
    search = Search(dissection, module, cuttable, scorer, given, budget, importance)
    return meet_goal(parse_goal(target), search, bench, make_plan)


def _require_options(
    amount: Amount | None,
    target: str | Goal | None,
    scope: str | None,
    iterations: int,
    data: Iterable[Any],
    previous: Plan | None,
) -> None:
    if scope is not None:
        require_one_of("scope", scope, ("layer", "global"))
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise UsageError(f"iterations is {iterations!r}; give how often to rank, 1 or more.")
    if isinstance(data, Tensor | dict):
        raise UsageError("data is a single input; give a list of inputs, each like example_inputs.")
    if previous is not None and not isinstance(previous, Plan):
        raise UsageError(f"previous is a {type(previous).__name__}; pass the Plan that was applied to the model.")
    if target is not None and (amount is not None or iterations > 1 or previous is not None):
        raise UsageError("A target decides by itself how much goes; leave out amount, iterations and previous.")
