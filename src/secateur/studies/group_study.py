"""`sensitivity`: cuts one group after the other, each alone, and evaluates what is left of the model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from secateur.base import (
    Amount,
    UsageError,
    copy_of_model,
    evaluating,
    interruptible,
    named,
    parse_amount,
    require_module,
    steps,
    uninterrupted,
    unwrap,
)
from secateur.capture import without_random_effects
from secateur.channels import (
    CutGroup,
    GroupCurve,
    NothingToCut,
    Sensitivity,
    SlowCounts,
    find_cut_groups,
    plan_channels,
)
from secateur.loop import (
    Loss,
    Metric,
    Recipe,
    Task,
    accuracy,
    classification_loss,
    digest_of_architecture,
    digest_of_state,
    name_of_metric,
    recipe_as_text,
    require_batches,
    require_epochs,
    require_number,
    train,
)
from secateur.plans import Plan, Score
from secateur.studies.evaluations import SensitivityCache
from secateur.studies.pool.side_by_side import side_by_side
from secateur.surgery import cut

AMOUNTS = ("25%", "50%", "75%")


def sensitivity(
    model: nn.Module,
    example_inputs: Any,
    eval_data: Any,
    *,
    metric: Metric = accuracy,
    amounts: Sequence[Amount] = AMOUNTS,
    score: Score = "l1",
    keep: Sequence[str | nn.Module] = (),
    finetune: float = 0,
    train_data: Any = None,
    loss: Loss = classification_loss,
    recipe: Recipe | None = None,
    cache: str | Path | None = None,
    at_once: int | None = None,
    progress: bool = True,
) -> Sensitivity:
    """Cuts one group of `model` after the other, each alone and on a copy, and evaluates what is left.

    Args:
        model: a trained model; it stays as it is.
        example_inputs: a tensor, a tuple of arguments, or a dict of keyword arguments.
        eval_data: a DataLoader that `metric` judges the model on.
        metric: a function of the model and `eval_data`, higher is better; accuracy by default.
        amounts: the shares of each group's channels to remove, such as 0.5 or "50%".
        score: what ranks the channels of a group, as for `plan_channels`.
        keep: layers, as modules or by name with wildcards, that keep all of their own channels.
        finetune: epochs, such as 0.25, for which each copy, and one that is not cut, is fine-tuned before it is
            evaluated. It shows what a cut costs in the end; without it you see what it costs at once, which is often
            quite different.
        train_data: what to fine-tune on.
        loss: a function of the model and a batch, for fine-tuning; cross-entropy by default.
        recipe: how to fine-tune, as for `prune`.
        cache: a file that keeps every evaluation. The same call with the same file goes on from there; another model,
            metric or score does not use them.
        at_once: how many copies are fine-tuned side by side, with Ray (the extra `sweep`); by default as many as cores
            allow. Without fine-tuning, and without Ray, they are evaluated one after another.
        progress: False for silence.
    """
    require_module(model)
    shares = _checked_amounts(amounts)
    kept = named("keep", keep, unwrap(model))
    require_batches("eval_data", eval_data)
    groups = find_cut_groups(model, example_inputs, kept)
    if not groups:
        raise NothingToCut(
            "No group can be cut; secateur.inspect(model, example_inputs) shows why, or keep protects them all."
        )
    recovery = _recovery(finetune, train_data, eval_data, loss, metric, recipe or Recipe())
    fingerprint = _fingerprint(model, eval_data, metric, score, kept) + (f" · {recovery}" if recovery else "")
    store = SensitivityCache(Path(cache) if cache else None, fingerprint)
    evaluate = _Evaluation(unwrap(model), metric, eval_data, recovery)
    pending = [(group, share) for group in groups for share in shares if not store.knows(group.name, share)]
    plans, asked = _questions(model, example_inputs, pending, store, score, kept)
    if plans and store.dense is None:
        plans = {None: None, **plans}
    titles = {_title(each): each for each in plans}
    planned = {title: plans[each] for title, each in titles.items()}
    with steps(len(plans), "sensitivity", progress and bool(plans)) as begin:
        for title, value in side_by_side(evaluate, planned, at_once if recovery else 1, begin):
            judged = titles[title]
            if judged is None:
                store.dense = value
                continue
            for share in asked[judged]:
                store.add(judged[0], share, (judged[1], value))
    curves = [_curve(group, [store.point(group.name, share) for share in shares]) for group in groups]
    measured = tuple(curve for curve in curves if curve.points)
    if store.dense is None or not measured:
        raise NothingToCut("The amounts are too small to remove a single channel of any group; ask for more.")
    return Sensitivity(name_of_metric(metric), store.dense, measured, _name_of_score(score))


_Removed = tuple[str, float]
"""A group, and the share of it that is really gone."""


def _questions(
    model: nn.Module,
    example_inputs: Any,
    pending: Sequence[tuple[CutGroup, float]],
    store: SensitivityCache,
    score: Score,
    keep: Sequence[str],
) -> tuple[dict[_Removed | None, Plan | None], dict[_Removed | None, list[float]]]:
    """What is to be evaluated, and which amounts asked for it; what needs no evaluation is stored at once."""
    plans: dict[_Removed | None, Plan | None] = {}
    asked: dict[_Removed | None, list[float]] = {}
    for group, share in pending:
        try:
            with warnings.catch_warnings(action="ignore", category=SlowCounts):  # it is not for its speed
                plan = plan_channels(model, example_inputs, per_layer={group.key: share}, score=score, keep=keep)
        except NothingToCut:
            store.add(group.name, share, None)  # the amount rounds to no channel
            continue
        removed = group.name, sum(cut.before - cut.after for cut in plan.groups) / group.units
        known = store.metric_at(*removed)  # another amount may round to the same channels
        if known is not None:
            store.add(group.name, share, (removed[1], known))
            continue
        plans[removed] = plan
        asked.setdefault(removed, []).append(share)
    return plans, asked


def _title(removed: _Removed | None) -> str:
    return "dense" if removed is None else f"{removed[0]} without {100 * removed[1]:g}%"


@dataclass(frozen=True)
class _Recovery:
    """Fine-tuning before an evaluation, the same for every copy."""

    epochs: float
    task: Task
    recipe: Recipe

    def __call__(self, model: nn.Module) -> float:
        return train(model, self.epochs, **vars(self.task), recipe=self.recipe, progress=False).after

    def __str__(self) -> str:
        return f"{self.epochs:g} epochs of {len(self.task.train_data)} batches, {recipe_as_text(self.recipe)}"


def _recovery(
    finetune: float, train_data: Any, eval_data: Any, loss: Loss, metric: Metric, recipe: Recipe
) -> _Recovery | None:
    epochs = require_epochs("finetune", finetune)
    if not epochs:
        return None
    if train_data is None:
        raise UsageError("finetune needs train_data to train on; give it, or leave finetune out.")
    scale = recipe.finetune_scale or 1.0
    slower = replace(recipe, lr=recipe.lr * scale, finetune_scale=scale, distill=recipe.distill or 0.0)
    return _Recovery(epochs, Task(train_data, eval_data, loss, metric), slower)


class _Evaluation:
    """The metric of copies of the model, each with the same random numbers."""

    def __init__(self, module: nn.Module, metric: Metric, eval_data: Any, recovery: _Recovery | None) -> None:
        self._module, self._metric, self._recovery = module, metric, recovery
        self._data = _on_device(eval_data, next(module.parameters()).device)

    def __call__(self, plan: Plan | None) -> float:
        """Of the model once the plan is carried out."""
        judged = copy_of_model(self._module)
        if plan is not None:
            cut(judged, plan)
        return require_number(self._recovery(judged) if self._recovery is not None else self._at_once(judged))

    def _at_once(self, judged: nn.Module) -> float:
        with uninterrupted(patience=1), evaluating(judged), torch.no_grad(), without_random_effects():
            torch.manual_seed(0)
            return interruptible(self._metric, judged, self._data)


def _on_device(eval_data: Any, device: torch.device) -> Any:
    """On a GPU, batches have to follow the model. No GPU has run this yet."""
    if device.type == "cpu" or not isinstance(eval_data, DataLoader):
        return eval_data
    from accelerate.data_loader import prepare_data_loader

    return prepare_data_loader(eval_data, device, num_processes=1, process_index=0, put_on_device=True)


def _curve(group: CutGroup, points: Sequence[tuple[float, float] | None]) -> GroupCurve:
    found = dict(point for point in points if point is not None)
    return GroupCurve(**vars(group), points=tuple(sorted(found.items())))


def _fingerprint(model: nn.Module, eval_data: Any, metric: Metric, score: Score, keep: Sequence[str]) -> str:
    """What evaluations must agree in to be used again. The data are known by their number only."""
    examples = len(eval_data.dataset) if hasattr(eval_data, "dataset") and hasattr(eval_data.dataset, "__len__") else ""
    parts = [digest_of_architecture(model), digest_of_state(model), name_of_metric(metric), _name_of_score(score)]
    return " · ".join([*parts, ",".join(sorted(keep)), f"{len(eval_data)} batches", f"{examples} examples"])


def _name_of_score(score: Score) -> str:
    return score if isinstance(score, str) else getattr(score, "__qualname__", type(score).__name__)


def _checked_amounts(amounts: Sequence[Amount]) -> list[float]:
    if isinstance(amounts, str | float | int):
        raise UsageError(f"amounts is {amounts!r}; give several, such as (0.25, 0.5, 0.75).")
    shares = sorted({parse_amount(amount) for amount in amounts})
    if not shares or shares[0] == 0:
        raise UsageError("amounts has to hold shares above 0, such as (0.25, 0.5, 0.75).")
    return shares
