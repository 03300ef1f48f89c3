"""Importance of single weights. The lowest scores are pruned first; a block's score is the sum over its weights.

A score is a function of a weight's name and values that returns a tensor of the same shape, all finite and ≥ 0.
To add one, write the function and name it in `SCORES`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import torch
from torch import Tensor

from secateur.base import UsageError, full_tensor, require_one_of
from secateur.plans import Score
from secateur.weights.prunable import Weight

ScoreFunction = Callable[[str, Tensor], Tensor]


def l1(name: str, weight: Tensor) -> Tensor:
    """The magnitude |w|."""
    return weight.detach().abs()


def l2(name: str, weight: Tensor) -> Tensor:
    """The square w², in float64 so that small weights do not underflow to a tie; differs from L1 in blocks only."""
    return weight.detach().double().square()


def taylor(name: str, weight: Tensor) -> Tensor:
    """|w · ∂loss/∂w|: how much the loss would change, to first order, if the weight were zero."""
    if weight.grad is None:
        raise UsageError(f'The score "taylor" needs gradients, but {name} has none; run loss.backward() first.')
    return (weight.detach().double() * weight.grad).abs()  # products of half-precision numbers underflow


def random(name: str, weight: Tensor) -> Tensor:
    """A control to compare against; the same on every run, drawn from the name."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.rand(weight.shape, generator=generator).to(weight.device)


SCORES: dict[str, ScoreFunction] = {"l1": l1, "l2": l2, "taylor": taylor, "random": random}


def resolve_score(score: Score) -> ScoreFunction:
    if callable(score):
        return score
    require_one_of("score", score, SCORES, ", or pass a function")
    return SCORES[score]


def score_weight(weight: Weight, function: ScoreFunction) -> Tensor:
    """The scores of one weight, checked: a custom function can return anything."""
    tensor = weight.tensor
    if hasattr(tensor, "full_tensor"):
        tensor = full_tensor(tensor.detach())
        tensor.grad = None if weight.tensor.grad is None else full_tensor(weight.tensor.grad)
    scores = function(weight.name, tensor)
    if not isinstance(scores, Tensor) or scores.shape != weight.tensor.shape:
        got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
        raise UsageError(
            f"The score function returned {got} for {weight.name}; return a tensor of shape {tuple(tensor.shape)}."
        )
    if not scores.is_floating_point():
        scores = scores.double()
    if scores.numel() and not (scores.amin() >= 0 and torch.isfinite(scores.amax())):
        raise UsageError(f"The scores of {weight.name} are not all finite and ≥ 0; return an importance, 0 for none.")
    return scores
