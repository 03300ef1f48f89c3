"""What a model is trained on and judged by. Classification is the default; `loss` and `metric` make it anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.base import UsageError, some_of, unwrap

_LABELS = ("labels", "label", "targets", "target", "y")
"""What people call them, in the order in which they are looked for."""

NO_DATA: list[Any] = []
"""To train on: for a run that trains nothing."""

Loss = Callable[[nn.Module, Any], Tensor]
Metric = Callable[[nn.Module, Iterable[Any]], float]


class NoLabels(UsageError):
    """A batch from which only another model's answers can be learnt."""


@dataclass(frozen=True)
class Task:
    train_data: Any
    eval_data: Any
    loss: Loss
    metric: Metric

    @property
    def metric_name(self) -> str:
        return name_of_metric(self.metric)

    def __post_init__(self) -> None:
        if self.train_data is not NO_DATA:
            require_batches("train_data", self.train_data)
        require_batches("eval_data", self.eval_data)


def name_of_metric(metric: Metric) -> str:
    name = getattr(metric, "__name__", "")
    return name if name.isidentifier() else "metric"


def require_number(value: Any) -> float:
    """What a metric returned, if models can be compared by it."""
    if isinstance(value, Mapping):
        keys = some_of([repr(key) for key in value])
        raise UsageError(
            f"The metric returns a dict of {keys}; let it return one of these numbers, higher being better."
        )
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):  # torch's, of a tensor with several numbers
        raise UsageError(
            f"The metric returns a {type(value).__name__}; let it return one number, higher being better."
        ) from None
    if not math.isfinite(number):
        raise UsageError(
            f"The metric returns {number}, by which no models compare; let it return a finite number for any model, "
            "higher being better."
        )
    return number


def require_loss(value: Any) -> Tensor:
    """What a loss returned, if a model can learn from it."""
    if not isinstance(value, Tensor):
        raise UsageError(f"The loss returns a {type(value).__name__}; let it return one number, as a tensor.")
    if value.numel() != 1:
        raise UsageError(f"The loss returns a tensor of shape {tuple(value.shape)}; let it return its mean.")
    if not value.requires_grad:
        raise UsageError(
            "The loss does not depend on the model's weights, so nothing can be learnt from it; compute it from the "
            "model's outputs, without detach(), item() or no_grad."
        )
    return value


def classification_loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of an (inputs, labels) batch or of a dict that holds labels; where the model computes a loss of its
    own for such a dict, that."""
    outputs, labels = outputs_and_labels(model, batch)
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if isinstance(batch, Mapping) and isinstance(loss, Tensor):
        return loss
    if labels is None:
        raise NoLabels(
            "A training batch holds no labels, which only fine-tuning does without, by distillation: give labels, "
            "(inputs, labels) pairs or a dict with labels, or leave out what needs them (train=…, distill=0, taylor)."
        )
    return F.cross_entropy(logits_of(outputs), labels)


def calling_as(loss: Loss) -> Callable[[nn.Module, Any], None]:
    """Calls the model as the loss does, whether or not there are labels."""

    def run(model: nn.Module, batch: Any) -> None:
        with suppress(NoLabels):
            loss(model, batch)

    return run


def accuracy(model: nn.Module, data: Iterable[Any]) -> float:
    """The share of correctly classified examples."""
    correct = total = 0
    for right in count_correct(model, data):
        correct += int(right.sum())
        total += right.numel()
    if not total:
        raise UsageError("The evaluation data are empty; check the loader that you pass as eval_data.")
    return correct / total


def count_correct(model: nn.Module, data: Iterable[Any]) -> Iterable[Tensor]:
    """For each batch, which examples are classified correctly."""
    with torch.no_grad():
        for batch in data:
            outputs, labels = outputs_and_labels(model, batch)
            if labels is None:
                raise UsageError(
                    "A batch of the evaluation data holds no labels to count by; give some, or write a metric of your "
                    "own."
                )
            logits = logits_of(outputs)
            if logits.shape[:-1] != labels.shape:
                raise UsageError(
                    f"Logits of shape {tuple(logits.shape)} do not classify labels of shape {tuple(labels.shape)}; "
                    "write a metric of your own."
                )
            yield logits.argmax(-1) == labels


def logits_of(outputs: Any) -> Tensor:
    """The logits in whatever a model returns: a tensor, an object or dict with `logits`, or a tuple led by them."""
    if isinstance(outputs, Tensor):
        return outputs
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if logits is None and isinstance(outputs, tuple | list) and outputs:
        logits = outputs[0]
    if not isinstance(logits, Tensor):
        raise UsageError(f"The model returns a {type(outputs).__name__} without logits; write a loss and a metric.")
    return logits


def require_batches(name: str, data: Any) -> None:
    """Refuses data that would only fail, or silently do nothing, after hours."""
    try:
        batches = len(data)
    except TypeError:
        raise UsageError(
            f"{name} has no length, so epochs have no end; wrap it in a DataLoader over a dataset of known size."
        ) from None
    if batches == 0:
        raise UsageError(f"{name} is empty; check the dataset and drop_last.")


def outputs_and_labels(model: nn.Module, batch: Any) -> tuple[Any, Tensor | None]:
    """What the model makes of a batch of the usual kinds, and the labels in it, if there are any."""
    if isinstance(batch, Mapping):
        return _called_with(model, batch)
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return model(batch[0]), batch[1]
    if isinstance(batch, Tensor):
        return model(batch), None
    if isinstance(batch, tuple | list) and len(batch) == 1:
        return model(batch[0]), None
    raise UsageError(
        f"A batch is a {type(batch).__name__}, not inputs, an (inputs, labels) pair or a dict; write your own loss and "
        "metric."
    )


def _called_with(model: nn.Module, batch: Mapping[str, Any]) -> tuple[Any, Tensor | None]:
    """The entries of a dict are the model's arguments, as transformers has it. Where they are called otherwise, what is
    beside the labels, if it is one thing, is what the model takes."""
    key = next((key for key in _LABELS if key in batch), None)
    labels = None if key is None else batch[key]
    taken = signature(unwrap(model).forward).parameters
    anything = any(each.kind is each.VAR_KEYWORD for each in taken.values())
    if batch.keys() <= taken.keys() or (anything and key in ("labels", None)):
        return model(**batch), labels
    inputs = {name: value for name, value in batch.items() if name != key}
    if inputs.keys() <= taken.keys():
        return model(**inputs), labels
    if key is None or len(inputs) > 1:
        raise _unknown_entries(model, batch)
    return model(*inputs.values()), labels


def _unknown_entries(model: nn.Module, batch: Mapping[str, Any]) -> UsageError:
    found, taken = (some_of([*map(str, names)], 8) for names in (batch, signature(unwrap(model).forward).parameters))
    return UsageError(
        f"A batch is a dict of {found}, and the model takes {taken}; call its entries like those, and the labels "
        '"labels", or write your own loss and metric.'
    )
