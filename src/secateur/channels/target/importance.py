"""What it costs the model that a bundle loses so many steps, the lowest-scoring first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from secateur.base import UsageError
from secateur.channels.budget import ScoresByGroup, lowest_first
from secateur.channels.dissection import Dissection
from secateur.channels.sensitivity_curves import Sensitivity
from secateur.couple import Bundle

StepLoss = Callable[[int], float]
"""From a number of steps to what they cost, growing with the number."""
Importance = Callable[[Bundle, ScoresByGroup], StepLoss]
"""From a bundle and the scores of its groups' units to the loss."""
_LEAST_LOSS = 0.002
"""Of the metric: below it, a loss that was seen is chance, and the scores decide."""


def by_score(dissection: Dissection) -> Importance:
    """The share of the bundle's importance that goes, over the share that stays, once for every layer that it couples.

    Scores of different layers do not compare, but shares of a layer do. A channel that more layers read or write is
    worth more: those of a residual stream above all. And the less is left of a layer, the more a further cut hurts;
    without that, whichever layer is dearest would lose everything first.
    """

    def importance(bundle: Bundle, scores: ScoresByGroup) -> StepLoss:
        kept = np.zeros(bundle.steps + 1)
        for group in bundle.groups:
            own = scores[group.index]
            ordered = own[lowest_first(group, own, set())].reshape(bundle.steps, -1).sum(1)
            total = ordered.sum()
            shares = np.cumsum(ordered) / total if total > 0 else np.arange(1, bundle.steps + 1) / bundle.steps
            kept += 1 - np.concatenate([[0.0], shares])
        kept /= len(bundle.groups)
        layers = len({layer for group in bundle.groups for layer in dissection.layers(group)})
        return lambda steps: float(layers * (1 / max(kept[steps], 1e-9) - 1))

    return importance


def by_sensitivity(sensitivity: Sensitivity, dissection: Dissection) -> Importance:
    """What the metric was seen to lose when this bundle alone was cut, times what the scores say.

    Each knows what the other does not: a loss, which layers fine-tuning hardly needs; the scores, that a layer of which
    little is left stops recovering, and that one which many others read is missed more once those are cut as well.
    """
    by_scores = by_score(dissection)
    least = _LEAST_LOSS * (abs(sensitivity.dense) or 1.0)

    def importance(bundle: Bundle, scores: ScoresByGroup) -> StepLoss:
        names = [dissection.name(group) for group in bundle.groups]
        name = next((name for name in names if name in sensitivity), None)
        if name is None:
            raise UsageError(
                f"The sensitivity has no group {names[0]}; measure it anew with this model and the same `keep`."
            )
        by_score_of_bundle = by_scores(bundle, scores)
        return lambda steps: (sensitivity.loss(name, steps / bundle.steps) + least) * by_score_of_bundle(steps)

    return importance
