"""What a model is trained on and judged by. Classification is the default; `loss` and `metric` make it anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.base import UsageError

Loss = Callable[[nn.Module, Any], Tensor]
Metric = Callable[[nn.Module, Iterable[Any]], float]


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
        require_batches("train_data", self.train_data)
        require_batches("eval_data", self.eval_data)


def name_of_metric(metric: Metric) -> str:
    name = getattr(metric, "__name__", "")
    return name if name.isidentifier() else "metric"


def classification_loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of an (inputs, labels) batch, or the model's own loss for a dict batch that holds labels."""
    if isinstance(batch, Mapping):
        outputs = model(**batch)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
        if isinstance(loss, Tensor):
            return loss
        return F.cross_entropy(logits_of(outputs), batch["labels"])
    inputs, labels = _pair(batch)
    return F.cross_entropy(logits_of(model(inputs)), labels)


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
            if isinstance(batch, Mapping):
                logits, labels = logits_of(model(**batch)), batch["labels"]
            else:
                inputs, labels = _pair(batch)
                logits = logits_of(model(inputs))
            if logits.shape[:-1] != labels.shape:
                raise UsageError(
                    f"Logits of shape {tuple(logits.shape)} do not classify labels of shape {tuple(labels.shape)}; "
                    "pass a metric of your own."
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
        raise UsageError(f"The model returns a {type(outputs).__name__} without logits; pass your own loss and metric.")
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


def _pair(batch: Any) -> tuple[Any, Tensor]:
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    raise UsageError(
        f"A batch is a {type(batch).__name__}, not an (inputs, labels) pair or a dict; pass your own loss and metric."
    )
