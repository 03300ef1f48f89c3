"""Distillation: what a pruned model learns from the answers of the model before the cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.base import UsageError, tensors_in
from secateur.loop.task import logits_of


class Call(NamedTuple):
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any


@contextmanager
def calls_of(model: nn.Module) -> Iterator[list[Call]]:
    """What the model is called with meanwhile, and what it gives."""
    seen: list[Call] = []
    hook = model.register_forward_hook(
        lambda module, args, kwargs, outputs: seen.append(Call(args, kwargs, outputs)), with_kwargs=True
    )
    try:
        yield seen
    finally:
        hook.remove()


def imitation_loss(teacher: nn.Module, calls: list[Call], classes: bool, temperature: float) -> Tensor:
    """How far the outputs of all calls are from the teacher's: as probabilities of classes, or as numbers."""
    if not calls:
        raise UsageError(
            "The loss function does not call the model it is given, so distillation has nothing to compare."
        )
    losses = []
    for call in calls:
        with torch.no_grad():
            wanted = teacher(*call.args, **call.kwargs)
        losses.append(_divergence(wanted, call.outputs, temperature) if classes else _distance(wanted, call.outputs))
    return torch.stack(losses).sum()


def _divergence(wanted: Any, given: Any, temperature: float) -> Tensor:
    """From the teacher's softened outputs, by Kullback and Leibler."""
    target, student = (F.log_softmax(logits_of(each).float() / temperature, -1) for each in (wanted, given))
    rows = student.numel() // student.shape[-1]
    return F.kl_div(student, target, reduction="sum", log_target=True) / rows * temperature**2


def _distance(wanted: Any, given: Any) -> Tensor:
    """The mean square of the difference, for each output in units of the teacher's own mean square."""
    pairs = zip(tensors_in(wanted), tensors_in(given), strict=True)
    parts = [
        F.mse_loss(student.float(), target.float()) / target.float().square().mean().clamp_min(1e-12)
        for target, student in pairs
        if target.is_floating_point() and target.numel()
    ]
    if not parts:
        raise UsageError("The model gives no numbers to imitate; give training data with labels.")
    return torch.stack(parts).sum()
