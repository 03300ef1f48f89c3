"""`plan_weights`: from a model and an amount to `Masks`. Nothing in the model changes here."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import torch
from torch import Tensor, nn

from secateur.base import (
    Amount,
    LeftAlone,
    SecateurWarning,
    UsageError,
    first_match,
    full_tensor,
    matches_any,
    named,
    parse_amount,
    require_known,
    require_module,
    some_of,
    unwrap,
)
from secateur.plans import LayerMask, Masks, Options, Scope, Zeros, as_request
from secateur.weights.pattern import Block, NofM, parse_pattern
from secateur.weights.prunable import Weight, check_finite, find_weights
from secateur.weights.rank import CHUNK, Cutoff, find_cutoff, select
from secateur.weights.score import ScoreFunction, l1, resolve_score, score_weight


def plan_weights(
    model: nn.Module, amount: Amount | Zeros | None = None, *, previous: Masks | None = None, **options: Unpack[Options]
) -> Masks:
    """Ranks the weights of `model` and selects the `amount` that matters least.

    Args:
        model: stays as it is.
        amount: the share to prune, such as 0.9 or "90%"; or all that is to be said, as `Zeros(0.9, scope="layer")`.
        previous: masks of an earlier plan of the same weights; what they prune stays pruned, and counts.
        **options: those of `Zeros`: `scope`, `pattern`, `score`, `keep`, `include` and `per_layer`.
    """
    request = as_request(Zeros, amount, options)
    if not isinstance(request, Zeros):
        raise UsageError(f"{type(request).__name__} removes channels; hand it to plan_channels.")
    require_module(model)
    module = unwrap(model)
    included = named("include", request.include, module)
    parsed = parse_pattern(request.pattern) if request.pattern is not None else None
    function = resolve_score(request.score)
    per_layer = request.per_layer or {}
    weights, left_alone = find_weights(module, named("keep", request.keep, module), included)
    require_known("per_layer", per_layer, [name for weight in weights for name in (weight.name, *weight.aliases)])
    misfits = {} if parsed is None else _misfits(weights, parsed)
    ranked = [weight for weight in weights if weight.name not in misfits]
    _require_fit(weights, misfits, {"include": included, "per_layer": per_layer})
    left_alone += [LeftAlone(name, why) for name, why in misfits.items()]
    if not ranked:
        raise UsageError(_nothing_to_prune(left_alone, misfits, parsed))
    if previous is not None:
        _require_contained(previous, ranked, parsed)
    for weight in ranked:
        check_finite(weight)

    if isinstance(parsed, NofM):
        _require_amount_of(parsed, request.amount, per_layer)
        layers = {weight.name: _prune_n_of_m(weight, parsed, function, previous) for weight in ranked}
    else:
        ranker = _Ranker(function, parsed, previous)
        layers = {}
        for members, share in _pools(ranked, request.amount, request.scope, per_layer):
            layers.update(ranker.prune(members, share))
    masks = Masks(
        {weight.name: layers.get(weight.name) or LayerMask.dense(weight.tensor.shape) for weight in weights},
        scope="layer" if isinstance(parsed, NofM) else request.scope,
        pattern=str(parsed) if parsed else None,
        score=getattr(request.score, "__name__", str(request.score)),
        left_alone=tuple(left_alone),
    )
    if masks.emptied:
        warnings.warn(
            f"Nothing is left of {', '.join(masks.emptied)}; "
            'protect such layers with keep=[…], or prune every layer alike with scope="layer".',
            SecateurWarning,
            stacklevel=2,
        )
    return masks


def _pools(
    weights: Sequence[Weight], amount: Amount | None, scope: Scope, per_layer: Mapping[str, Amount]
) -> Iterator[tuple[list[Weight], float]]:
    """The weights that are ranked together, with their amount."""
    own_amount = {weight.name: first_match(per_layer, [weight.name, *weight.aliases]) for weight in weights}
    rest = [weight for weight in weights if own_amount[weight.name] is None]
    if rest and amount is None:
        raise UsageError('Say how much to prune, such as 0.9, or choose a pattern such as "2:4".')
    for weight in weights:
        own = own_amount[weight.name]
        if own is not None:
            yield [weight], parse_amount(own)
    if amount is not None:
        share = parse_amount(amount)
        for pool in [rest] if scope == "global" else [[weight] for weight in rest]:
            if pool:
                yield pool, share


@dataclass(frozen=True)
class _Ranker:
    """Prunes a pool of weights to an exact count, by single weights or by blocks."""

    function: ScoreFunction
    block: Block | None
    previous: Masks | None

    def prune(self, pool: Sequence[Weight], share: float) -> dict[str, LayerMask]:
        # Magnitudes of float32 and narrower rank exactly in float32; any other score may come in float64.
        wide = self.function is not l1 or any(weight.tensor.dtype == torch.float64 for weight in pool)
        units = sum(weight.tensor.numel() for weight in pool) // (self.block.size if self.block else 1)
        count = round(share * units) - sum(self._already_pruned(weight) for weight in pool)
        cutoff = find_cutoff(lambda: (self._scores(weight) for weight in pool), max(count, 0), wide=wide)
        layers = {}
        for weight in pool:
            layers[weight.name], cutoff = self._mask(weight, cutoff, wide)
        return layers

    def _scores(self, weight: Weight) -> Tensor:
        """One score a unit. What is already pruned scores infinite, so that the choice is among the others."""
        if self.function is l1 and self.block is None and self.previous is None:
            return full_tensor(weight.tensor.detach())  # the ranking ignores signs: no copy is needed
        scores = score_weight(weight, self.function)
        if self.block:
            assert weight.input_dim is not None
            scores = self.block.reduce(scores.float() if scores.itemsize < 4 else scores, weight.input_dim)
        pruned = self._pruned_units(weight)
        return scores if pruned is None else scores.masked_fill(pruned.to(scores.device), float("inf"))

    def _pruned_units(self, weight: Weight) -> Tensor | None:
        if self.previous is None or weight.name not in self.previous.layers:
            return None
        pruned = self.previous.layers[weight.name].pruned()
        if self.block:
            assert weight.input_dim is not None
            pruned = self.block.reduce(pruned.float(), weight.input_dim) == self.block.size
        return pruned

    def _already_pruned(self, weight: Weight) -> int:
        pruned = self._pruned_units(weight)
        return 0 if pruned is None else int(pruned.sum())

    def _mask(self, weight: Weight, cutoff: Cutoff, wide: bool) -> tuple[LayerMask, Cutoff]:
        scores = self._scores(weight)
        selected, cutoff = _select_packed(scores, cutoff, wide)
        if self.block is None and self.previous is None:
            zeros = int(np.bitwise_count(selected).sum())
            return LayerMask(tuple(weight.tensor.shape), selected, zeros), cutoff
        flags = torch.from_numpy(np.unpackbits(selected, count=scores.numel()).view(bool)).view(scores.shape)
        before = self._pruned_units(weight)
        if before is not None:
            flags |= before
        if self.block:
            assert weight.input_dim is not None
            flags = self.block.expand(flags, weight.tensor.shape, weight.input_dim)
        return LayerMask.pack(flags), cutoff


def _select_packed(scores: Tensor, cutoff: Cutoff, wide: bool) -> tuple[np.ndarray, Cutoff]:
    """The selected units as bits, chunk by chunk, so that no second copy of the layer is made."""
    packed = []
    for chunk in scores.reshape(-1).split(CHUNK):
        selected, cutoff = select(chunk, cutoff, wide=wide)
        packed.append(np.packbits(selected.cpu().numpy()))
    return np.concatenate(packed) if packed else np.empty(0, np.uint8), cutoff


def _prune_n_of_m(weight: Weight, pattern: NofM, function: ScoreFunction, previous: Masks | None) -> LayerMask:
    assert weight.input_dim is not None
    scores = score_weight(weight, function)
    if previous is not None and weight.name in previous.layers:
        # Below every other score, so that pruned weights are the first to go; the score itself is never negative.
        scores = scores.masked_fill(previous.layers[weight.name].pruned().to(scores.device), -1.0)
    removed = pattern.select(scores, weight.input_dim)
    if previous is not None and weight.name in previous.layers:
        removed |= previous.layers[weight.name].pruned().to(removed.device)
    return LayerMask.pack(removed)


def _misfits(weights: Sequence[Weight], pattern: NofM | Block) -> dict[str, str]:
    """The weights that the pattern cannot run along, and why: they stay dense."""
    why = {weight.name: _misfit(weight, pattern) for weight in weights}
    return {name: reason for name, reason in why.items() if reason}


def _misfit(weight: Weight, pattern: NofM | Block) -> str | None:
    if weight.input_dim is not None:
        return pattern.misfit(weight.tensor.shape, weight.input_dim)
    return "which of its dimensions is the input is unknown" if weight.tensor.ndim > 1 else "it has no input dimension"


def _require_fit(weights: Sequence[Weight], misfits: Mapping[str, str], options: Mapping[str, Iterable[str]]) -> None:
    """Refuses an option that names a layer which stays dense, because it would be ignored in silence."""
    for option, patterns in options.items():
        for pattern in patterns:
            meant = [weight.name for weight in weights if matches_any([pattern], [weight.name, *weight.aliases])]
            dense = [name for name in meant if name in misfits]
            if dense and (option == "include" or len(dense) == len(meant)):
                raise UsageError(
                    f"{option} names {dense[0]}, which stays dense: {misfits[dense[0]]}; leave it out of {option}."
                )


def _require_contained(previous: Masks, weights: Sequence[Weight], pattern: NofM | Block | None) -> None:
    """Refuses earlier masks that the new ones cannot contain."""
    ranked = {weight.name: weight for weight in weights}
    for name, layer in previous.layers.items():
        if not layer.zeros:
            continue
        if name not in ranked or tuple(ranked[name].tensor.shape) != layer.shape:
            raise UsageError(f"The earlier mask of {name} fits no weight in this ranking; plan the same weights again.")
        if isinstance(pattern, Block):
            input_dim = ranked[name].input_dim
            assert input_dim is not None
            if not bool((pattern.reduce(layer.pruned().float(), input_dim) % pattern.size == 0).all()):
                raise UsageError(
                    f"The earlier mask of {name} cuts through {pattern} blocks; plan with its own pattern."
                )


def _require_amount_of(pattern: NofM, amount: Amount | None, per_layer: Mapping[str, Amount] | None) -> None:
    if per_layer:
        raise UsageError(f"per_layer cannot go with {pattern}, which fixes the amount; leave layers dense with keep.")
    if amount is not None and abs(parse_amount(amount) - pattern.amount) > 1e-9:
        raise UsageError(
            f"The pattern {pattern} prunes exactly {pattern.amount:.4g} of each layer, not {amount}; "
            "leave `amount` out."
        )


def _nothing_to_prune(left_alone: Sequence[LeftAlone], misfits: Mapping[str, str], pattern: NofM | Block | None) -> str:
    if misfits:
        reasons = some_of([f"{name}: {why}" for name, why in misfits.items()], between="; ")
        return f"The pattern {pattern} fits no layer of the model ({reasons}); choose another, or prune without one."
    if not left_alone:
        return "The model has no parameters, so there is nothing to prune; pass the nn.Module that holds the weights."
    reasons = "; ".join(f"{item.name}: {item.reason}" for item in left_alone[:3])
    return f"The model has no prunable weights ({reasons}); name the parameters to prune in include=[…]."
