"""Normalisations and fused attention, when some of their coordinates are removed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from secateur.surgery.proof.absence import Operation, contracted, filled, is_dead, marked, mean_of, rule

# Root-mean-square normalisation is composite and arrives in its parts; batch normalisation with given statistics works
# channel by channel, which NaN leaves by itself.


def _affine(values: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = values if weight is None else values * weight
    return scaled if bias is None else scaled + bias


def _standardised(values: Tensor, axes: Iterable[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The values with mean 0 and variance 1 among the live ones, with that mean and the reciprocal deviation."""
    axes = tuple(axes)
    mean = mean_of(values, axes)
    reciprocal = (mean_of((values - mean).square(), axes) + eps).rsqrt()
    return (values - mean) * reciprocal, mean, reciprocal


@rule("native_layer_norm")
def _layer_norm(call: Operation) -> tuple[Tensor, Tensor, Tensor]:
    axes = range(-len(call.given["normalized_shape"]), 0)
    standardised, mean, reciprocal = _standardised(call.given["input"], axes, call.given["eps"])
    return _affine(standardised, call.given["weight"], call.given["bias"]), mean, reciprocal


@rule("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional")
def _batch_norm(call: Operation) -> Any:
    """Statistics of the batch itself: instance normalisation arrives so, and standardised weights."""
    if not call.given["training"]:
        return call.as_is()
    values, weight, bias = (call.given[name] for name in ("input", "weight", "bias"))
    axes = [axis for axis in range(values.dim()) if axis != 1]
    standardised, mean, reciprocal = _standardised(values, axes, call.given["eps"])
    per_channel = (1, -1, *[1] * (values.dim() - 2))
    weight, bias = (None if each is None else each.view(per_channel) for each in (weight, bias))
    return _affine(standardised, weight, bias), mean.flatten(), reciprocal.flatten()


@rule("native_group_norm")
def _group_norm(call: Operation) -> tuple[Tensor, Tensor, Tensor]:
    values, weight, bias, batch, channels, _, groups, eps = tuple(call.given.values())[:8]
    standardised, mean, reciprocal = _standardised(values.reshape(batch, groups, -1), (2,), eps)
    per_channel = (1, channels, *[1] * (values.dim() - 2))
    weight, bias = (None if each is None else each.view(per_channel) for each in (weight, bias))
    return _affine(standardised.view(values.shape), weight, bias), mean.squeeze(2), reciprocal.squeeze(2)


@rule("_weight_norm_interface")
def _weight_norm(call: Operation) -> tuple[Tensor, Tensor]:
    direction, magnitude, dim = call.given["v"], call.given["g"], call.given["dim"]
    others = [axis for axis in range(direction.dim()) if axis != dim % direction.dim()]
    norm = filled(direction, 0).square().sum(others, keepdim=True).sqrt()
    return direction * (magnitude / norm), norm


@rule(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
def _attention(call: Operation) -> Any:
    """The fused kernels, in steps; the unfused form of attention is composite and arrives in its parts."""
    query, key, value = (call.given[name] for name in ("query", "key", "value"))
    if call.given["dropout_p"]:  # random: nothing to prove
        return call.as_is()
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], dim=1) for each in (key, value))
    scale = call.given["scale"]
    scores = contracted(torch.matmul, query, key.mT) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    mask = call.given.get("attn_mask", call.given.get("attn_bias"))
    if call.given["is_causal"]:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        # Added, not filled in: what is masked in a dead head must stay dead.
        scores = scores + (torch.where(mask, 0.0, -math.inf) if mask.dtype == torch.bool else mask)
    weights = marked(torch._safe_softmax(filled(scores, -math.inf), -1), is_dead(scores))
    output = contracted(torch.matmul, weights, value)
    if output.shape == query.shape:  # the kernels follow the layout of the query, and models `view` the result
        output = torch.empty_like(query).copy_(output)
    unused = (query.new_empty(0) if str(each.type) == "Tensor" else 0 for each in call.func._schema.returns[1:])
    return (output, *unused)
