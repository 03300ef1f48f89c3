"""Whether a model is as its constructor left it: nobody trained it, or its weights were never loaded.

Training moves every number it may. So a norm whose scales are all the same, a layer whose biases are all zero, and a
weight that is uniform in exactly the range that torch draws it from tell that nothing has happened to them. A layer
without such a sign tells nothing, and a single layer that was trained speaks for the model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from secateur.base import full_tensor, unwrap

_ENOUGH = 64
"""Weights that are enough to know a distribution by."""


def looks_untrained(model: nn.Module) -> bool:
    told = [fresh for module in unwrap(model).modules() if (fresh := _is_fresh(module)) is not None]
    return bool(told) and all(told)


def _is_fresh(module: nn.Module) -> bool | None:
    """None where the module does not tell."""
    own = [full_tensor(parameter.detach()) for parameter in module.parameters(recurse=False)]
    if any(_as_torch_draws_it(tensor) for tensor in own if tensor.ndim > 1):
        return True
    vectors = [tensor for tensor in own if tensor.ndim == 1 and tensor.numel() > 1]
    mean = getattr(module, "running_mean", None)
    if not vectors and isinstance(mean, Tensor):
        vectors = [mean]  # of a norm without a scale
    return all(bool((vector == vector[0]).all()) for vector in vectors) if vectors else None


def _as_torch_draws_it(weight: Tensor) -> bool:
    """Uniform between ±1/√inputs, as linear and convolutional layers begin. Of numbers within a bound, only uniform
    ones are half of it on average."""
    if weight.numel() < _ENOUGH or not weight.is_floating_point():
        return False
    bound = 1 / math.sqrt(weight[0].numel())
    largest, mean = float(weight.abs().max()), float(weight.abs().mean(dtype=torch.float64))
    return largest <= 1.01 * bound and abs(mean - bound / 2) <= 0.15 * bound / 2
