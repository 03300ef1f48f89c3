"""A mode in which NaN means "depends on the input": what is left a number is constant, whatever finite input comes.

A product with an exact zero is zero, also where the other factor is unknown. Integers and booleans cannot be marked, so
whatever is computed from them is unknown. So is the result of an operation that is not known to pass NaN on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from secateur.base import tensors_in
from secateur.surgery import DecomposingMode, Operation, is_pointwise, operation_name

# A coordinate of the result is NaN by itself where one that it is computed from is. Norms are not: that of order 0
# counts NaN as a number.
_PASSES_NAN_ON = frozenset(
    """cat stack constant_pad_nd clone copy _to_copy zeros_like ones_like full_like empty_like new_zeros new_ones
    new_full new_empty new_empty_strided fill zero repeat roll flip pixel_shuffle pixel_unshuffle channel_shuffle
    im2col col2im slice_scatter select_scatter sum mean amax amin var std var_mean std_mean cumsum _softmax
    _log_softmax _safe_softmax native_layer_norm native_group_norm _fused_rms_norm _weight_norm_interface avg_pool2d
    avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d max_pool2d_with_indices max_pool3d_with_indices
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d
    upsample_trilinear3d upsample_bicubic2d reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d glu
    max min prod logsumexp tril triu adaptive_max_pool2d adaptive_max_pool3d _unsafe_view _reshape_alias unsafe_split
    unsafe_split_with_sizes lift_fresh lift_fresh_copy""".split()
)


class UnknownIsNaN(DecomposingMode):
    """Marks what depends on inputs that are NaN."""

    def perform(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = operation_name(func)
        given = list(tensors_in((args, kwargs), objects=False))
        if func.is_view or name == "detach":
            return func(*args, **kwargs)
        if name in _RULES:
            return _RULES[name](Operation(func, args, kwargs))
        if torch.Tag.nondeterministic_seeded in func.tags:
            return _unknown(func(*args, **kwargs))
        if given and is_pointwise(func):
            return _pointwise(Operation(func, args, kwargs), given)
        if all(map(_is_real_number, given)) and (name in _PASSES_NAN_ON or not any(map(_has_nan, given))):
            return func(*args, **kwargs)
        results = func(*args, **kwargs)
        _unknown(given if results is None else results)
        return results


_Rule = Callable[[Operation], Any]
_RULES: dict[str, _Rule] = {}


def _rule(*names: str) -> Callable[[_Rule], _Rule]:
    def register(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def _unknown(results: Any, where: Tensor | None = None) -> Any:
    """The results with NaN everywhere, or at these coordinates; in place, which serves operations in place as well."""
    for result in tensors_in((results,), objects=False):
        if _is_real_number(result):
            same = where is not None and where.shape == result.shape
            result.masked_fill_(where if same and where is not None else _everywhere(result), math.nan)
    return results


def _is_real_number(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _has_nan(tensor: Tensor) -> bool:
    return bool(tensor.isnan().any())


def _everywhere(tensor: Tensor) -> Tensor:
    return torch.ones_like(tensor, dtype=torch.bool)


def _pointwise(call: Operation, given: list[Tensor]) -> Any:
    """Kernels may swallow NaN, as clamping and powers do."""
    marks = [each.isnan() if _is_real_number(each) else _everywhere(each) for each in given]
    unknown = reduce(torch.logical_or, marks)
    zeros = [each == 0 for each in given if _is_real_number(each)] if operation_name(call.func) == "mul" else []
    results = _unknown(call.as_is(), unknown)
    return results.masked_fill_(reduce(torch.logical_or, zeros).broadcast_to(results.shape), 0) if zeros else results


@_rule("where")
def _where(call: Operation) -> Any:
    """Nobody knows which of the two is chosen."""
    results = call.as_is()
    alike = call.args[1] == call.args[2] if len(call.args) == 3 else torch.zeros_like(results, dtype=torch.bool)
    return _unknown(results, ~torch.as_tensor(alike).broadcast_to(results.shape))


@_rule("masked_fill")
def _masked_fill(call: Operation) -> Any:
    values, _, filling = call.args
    differs = values != filling
    results = call.as_is()
    return _unknown(results, differs.broadcast_to(results.shape))


@_rule("embedding", "index", "index_select", "gather", "_unsafe_index")
def _look_up(call: Operation) -> Any:
    """Nobody knows which coordinates are looked up: what is alike in all of them is known."""
    table, *rest = call.args
    match operation_name(call.func):
        case "embedding":
            axes = [0]
        case "index" | "_unsafe_index":
            axes = [axis for axis, each in enumerate(_spread_masks(rest[0])) if each is not None]
        case _:
            axes = [rest[0]] if table.dim() else []
    for axis in axes:
        alike = (table == table.narrow(axis, 0, 1)).all(axis, keepdim=True)
        table = table.masked_fill(~alike, math.nan) if _is_real_number(table) else table
    return call.func(table, *rest, **call.kwargs)


def _spread_masks(indices: Iterable[Tensor | None]) -> list[Tensor | None]:
    """One index for each axis that it picks from: a mask picks from as many as it has."""
    spread: list[Tensor | None] = []
    for index in indices:
        masks = index is not None and index.dtype in (torch.bool, torch.uint8)
        spread += [index] * (index.dim() if masks and index is not None else 1)
    return spread


# Contractions: a term is unknown where a factor is, unless the other one is zero.


def _contracted(product: Callable[[Tensor, Tensor], Tensor], left: Tensor, right: Tensor) -> Tensor:
    unknown_left, unknown_right = (factor.isnan() for factor in (left, right))
    unknown_terms = product(unknown_left.double(), (right != 0).double())
    unknown_terms = unknown_terms + product((left != 0).double(), unknown_right.double())
    result = product(left.masked_fill(unknown_left, 0), right.masked_fill(unknown_right, 0))
    return result.masked_fill_(unknown_terms > 0.5, math.nan)


@_rule("mm", "bmm", "mv", "dot")
def _product(call: Operation) -> Any:
    return call.delivered(_contracted(torch.matmul, *call.inputs()))


@_rule("addmm", "baddbmm", "addmv")
def _added_product(call: Operation) -> Any:
    added, left, right = call.inputs()
    product = _contracted(torch.matmul, left, right) * call.given["alpha"]
    beta = call.given["beta"]
    return call.delivered(product + beta * added if beta != 0 else product)


@_rule("convolution")
def _convolution(call: Operation) -> Tensor:
    values, kernel, bias, *geometry = call.args
    result: Tensor = _contracted(lambda x, w: call.func(x, w, None, *geometry), values, kernel)
    return result if bias is None else result + bias.view(-1, *[1] * (kernel.dim() - 2))


@_rule("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "cudnn_batch_norm")
def _batch_norm(call: Operation) -> Any:
    """Each channel on its own; one that is scaled by zero is its shift."""
    values, scale, shift = call.args[:3]
    results = call.as_is()
    if scale is not None and scale.numel():
        constant = torch.zeros_like(scale) if shift is None else shift
        channels = (1, -1, *[1] * (values.dim() - 2))
        results[0].copy_(torch.where((scale == 0).view(channels), constant.view(channels), results[0].clone()))
    return results


@_rule(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
def _attention(call: Operation) -> Any:
    """Whatever the weights of the sum are, values that are all zero give zero."""
    results = call.as_is()
    query, _, value = call.args[:3]
    value = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    _unknown(results)
    results[0].masked_fill_((value == 0).all(-2, keepdim=True), 0)
    return results
