"""How to train: the optimizer, the learning rate over time, and distillation from the unpruned model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.optim import Optimizer

from secateur.base import UsageError, require_one_of

DISTILLATION = 0.5
"""Its weight for classifiers, where a recipe leaves it open (benchmarks/recovery.py)."""
_STEPS_TO_FORGET = 100
"""Large steps undo what a repair has given back, and need time to make up for it. Of 31 steps, 0.3 of the rate was best
on most networks, of 234 the whole rate (benchmarks/recovery.py); what is between them is a guess."""
_SMALLEST_SCALE = 0.1


@dataclass(frozen=True)
class Recipe:
    """Settings shared by training and fine-tuning. Precision, accumulation and trackers belong to the Accelerator."""

    optimizer: str | Callable[[nn.Module], Optimizer] = "adamw"
    """ "adamw", "sgd" (with momentum 0.9), or a function from the model to any optimizer."""
    lr: float = 1e-3
    """The highest learning rate; not used when `optimizer` is a function, which sets its own."""
    weight_decay: float = 0.01
    finetune_scale: float | None = None
    """The learning rate of fine-tuning, as a multiple of that of training. By default 1; after a repair, in fewer than
    100 steps, as much less as they are fewer, but at least 0.1."""
    lr_schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the rate falls, within training and within each recovery, after the warm-up."""
    warmup: float = 0.05
    """The share of steps over which the rate rises from near zero."""
    distill: float | None = None
    """The weight, from 0 to 1, of imitating the unpruned model's outputs while fine-tuning. By default 0.5 where loss
    and metric are those of classification, and else 0. Batches without labels have nothing else to teach."""
    temperature: float = 2.0
    """How much distillation softens both models' outputs."""

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, str):
            require_one_of("optimizer", self.optimizer, ("adamw", "sgd"), ", or a function of the model in a Recipe")
        elif isinstance(self.optimizer, type) or not callable(self.optimizer):
            raise UsageError(
                f'The optimizer {self.optimizer!r} is neither "adamw" nor "sgd" nor a function of the model; pass, for '
                "example, lambda model: torch.optim.Adam(model.parameters(), 1e-3)."
            )
        require_one_of("lr_schedule", self.lr_schedule, ("cosine", "linear", "constant"))
        for name in ("lr", "finetune_scale", "temperature"):
            value = getattr(self, name)
            if not (value is getattr(Recipe, name) is None or (_is_number(value) and value > 0)):
                raise UsageError(f"{name} is {value!r}; give a number above 0.")
        for name in ("warmup", "distill"):
            value = getattr(self, name)
            if not (value is getattr(Recipe, name) is None or (_is_number(value) and 0 <= value <= 1)):
                raise UsageError(f"{name} is {value!r}; give a number from 0 to 1.")
        if not (_is_number(self.weight_decay) and self.weight_decay >= 0):
            raise UsageError(f"weight_decay is {self.weight_decay!r}; give 0 or a positive number.")
        for name in ("lr", "weight_decay"):
            if callable(self.optimizer) and getattr(self, name) != getattr(Recipe, name):
                raise UsageError(f'{name} belongs to "adamw" and "sgd"; an optimizer of your own sets it itself.')
        if self.distill == 0 and self.temperature != Recipe.temperature:
            raise UsageError("temperature belongs to distillation; set distill, too, or leave it out.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def finetune_scale(recipe: Recipe, repaired: bool, steps: int) -> float:
    """The multiple of the learning rate for so many steps of fine-tuning."""
    if recipe.finetune_scale is not None:
        return recipe.finetune_scale
    return min(1.0, max(_SMALLEST_SCALE, steps / _STEPS_TO_FORGET)) if repaired else 1.0


def make_optimizer(recipe: Recipe, model: nn.Module) -> Optimizer:
    if callable(recipe.optimizer):
        optimizer = recipe.optimizer(model)
        _require_usable(optimizer, model)
    else:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not trained:
            raise UsageError("Every parameter is frozen; set requires_grad on some, or use train=0 and finetune=0.")
        groups = [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": recipe.weight_decay},
            # Decay towards zero would only fight what norms and biases are there for.
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        if recipe.optimizer == "adamw":
            optimizer = torch.optim.AdamW(groups, lr=recipe.lr)
        else:
            optimizer = torch.optim.SGD(groups, lr=recipe.lr, momentum=0.9)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def _require_usable(optimizer: object, model: nn.Module) -> None:
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError(
            f"The optimizer function returned a {type(optimizer).__name__}; "
            "return a torch optimizer that steps without a closure."
        )
    own = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        raise UsageError("The optimizer trains none of the model's parameters; build it from the model it is given.")


def learning_rate_factor(recipe: Recipe, step: int, steps: int) -> float:
    """The multiple of the highest learning rate that step `step` of `steps` uses."""
    warmup = math.ceil(recipe.warmup * steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if recipe.lr_schedule == "constant":
        return 1.0
    done = (step - warmup) / max(1, steps - warmup)
    return 1 - done if recipe.lr_schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
