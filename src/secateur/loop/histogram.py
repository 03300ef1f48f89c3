"""The magnitudes of a dense model's weights, counted apart: those that a cut keeps, and those that it removes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from secateur.base import UsageError, full_tensor, unwrap
from secateur.plans import Masks, Plan
from secateur.weights import CHUNK, Weight, check_finite, find_weights

BINS = 80
DECADES = 4
"""The bins cover so many powers of ten below the largest weight, evenly in the logarithm; the first one takes the rest,
down to zero."""


@dataclass(frozen=True)
class WeightHistogram:
    edges: tuple[float, ...]
    """One more than there are bins. A weight on an edge is in the bin above it; the last bin holds its upper edge."""
    kept: tuple[int, ...]
    removed: tuple[int, ...]
    threshold: float
    """The largest magnitude removed, if none that is kept is smaller; NaN otherwise."""
    no_threshold: str
    """Why there is no threshold; empty where there is one."""


def weight_histogram(dense: nn.Module, cut: Masks | Plan) -> WeightHistogram:
    """Counts every weight that the cut could have removed, in the model as it was before the cut."""
    weights = _candidates(dense, cut)
    for weight in weights:
        check_finite(weight)
    largest = max((float(full_tensor(weight.tensor.detach()).abs().amax()) for weight in weights), default=0.0) or 1.0
    edges = torch.tensor(_edges(largest), dtype=torch.float64)
    counts = torch.zeros(2 * BINS, dtype=torch.int64)
    least_kept, most_removed = math.inf, -math.inf
    for magnitudes, removed in _chunks(weights, cut):
        bins = (torch.bucketize(magnitudes, edges, right=True) - 1).clamp_(max=BINS - 1)
        counts += torch.bincount(bins.add_(removed, alpha=BINS), minlength=2 * BINS)
        least_kept = min(least_kept, float(magnitudes.masked_fill(removed, math.inf).amin()))
        most_removed = max(most_removed, float(magnitudes.masked_fill(~removed, -math.inf).amax()))
    kept, gone = counts.view(2, BINS).tolist()
    reason = "" if any(gone) and most_removed <= least_kept else _why_no_threshold(cut)
    return WeightHistogram(
        tuple(edges.tolist()), tuple(kept), tuple(gone), math.nan if reason else most_removed, reason
    )


def _candidates(dense: nn.Module, cut: Masks | Plan) -> list[Weight]:
    """Masks name the weights that were ranked; a plan leaves all open that multiply."""
    module = unwrap(dense)
    tensors = {**dict(module.named_buffers()), **dict(module.named_parameters(remove_duplicate=False))}
    planned = cut.layers if isinstance(cut, Masks) else cut.tensors
    if any(name not in tensors or tuple(tensors[name].shape) != item.shape for name, item in planned.items()):
        raise UsageError("The cut was made for another model; give the dense model that it was planned on.")
    if isinstance(cut, Plan):
        return find_weights(module)[0]
    return [Weight(name, (), tensors[name], None) for name in cut.layers]


def _edges(largest: float) -> list[float]:
    """The last edge is the largest weight itself, not a power of ten that rounding may leave below it."""
    inner = largest * np.logspace(-DECADES, 0, BINS)
    return [0.0, *inner[:-1].tolist(), largest]


def _chunks(weights: list[Weight], cut: Masks | Plan) -> Iterator[tuple[Tensor, Tensor]]:
    """Magnitudes in float64, and whether each is removed, piece by piece, so that no large copy is made."""
    for weight in weights:
        values = full_tensor(weight.tensor.detach()).reshape(-1)
        removed = _removed(weight, cut).reshape(-1)
        for piece, gone in zip(values.split(CHUNK), removed.split(CHUNK), strict=True):
            yield piece.cpu().double().abs(), gone


def _removed(weight: Weight, cut: Masks | Plan) -> Tensor:
    """Of a plan: a weight stays where its coordinate stays along every axis."""
    if isinstance(cut, Masks):
        return cut.layers[weight.name].pruned()
    removed = torch.zeros(weight.tensor.shape, dtype=torch.bool)
    planned = cut.tensors.get(weight.name)
    for axis, kept in planned.kept.items() if planned else ():
        gone = torch.ones(removed.shape[axis], dtype=torch.bool)
        gone[torch.from_numpy(kept)] = False
        removed |= gone.reshape([-1 if d == axis else 1 for d in range(removed.ndim)])
    return removed


def _why_no_threshold(cut: Masks | Plan) -> str:
    if isinstance(cut, Plan):
        return (
            "Whole channels went, so small weights stay in those that were kept, and large ones left with the others."
        )
    if not cut.zeros:
        return "Nothing was removed."
    if cut.pattern is not None:
        return f"The pattern {cut.pattern} chooses among neighbours, so there is no one threshold."
    if cut.score not in ("l1", "l2"):
        return f"The score {cut.score} ranks by something other than magnitude, so there is no threshold."
    if cut.scope == "layer":
        return "Every layer was ranked on its own, so there is no one threshold."
    return "The weights moved between the cuts, or some layers had amounts of their own, so there is no one threshold."
