"""The reference against which a physically pruned model is proven: the full-size model, with NaN for "removed".

Every removed coordinate of every parameter and buffer of the original model is overwritten with NaN, and the model runs
as its author wrote it. `RemovedIsNaN` makes NaN behave like absence in each operation: sums leave it out, statistics
are taken without it, and what is computed from it alone is removed as well. Nothing of the channel engine takes part,
so its mistakes cannot repeat here. Operations without a rule run as they are: NaN spreads, and the proof fails rather
than passing wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import torch
from torch import Tensor, nn

from secateur.prove.float64 import DecomposingMode, Float64, grouped_product, lifted

__all__ = ["Float64", "RemovedIsNaN", "run_float64", "run_reference"]


def run_reference(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The outputs of a float64 model whose removed coordinates are NaN, computed as if those were absent."""
    # Float64 is entered last and thus sees an operation first: RemovedIsNaN gets it in float64 already.
    with RemovedIsNaN():
        return run_float64(model, args, kwargs)


def run_float64(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The outputs of a float64 model with float64 throughout: the pruned model's side of the proof."""
    args, kwargs = lifted((args, kwargs))
    with torch.no_grad(), _plain_operations(), Float64():
        return model(*args, **kwargs)


@contextmanager
def _plain_operations() -> Iterator[None]:
    """No kernel that does the work of a whole layer: the fast path of attention, and recurrent layers on CUDA."""
    fast_path, cudnn = torch.backends.mha.get_fastpath_enabled(), torch.backends.cudnn.enabled
    torch.backends.mha.set_fastpath_enabled(False)
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        torch.backends.cudnn.enabled = cudnn


class RemovedIsNaN(DecomposingMode):
    """Makes NaN mean "removed" in every operation that has a rule below; one that meets no NaN runs untouched.

    Combined with `Float64`, in either order; entering `Float64` last is the quicker one.
    """

    def perform(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = _name(func)
        rule = _pointwise if _is_pointwise(func, name) else _RULES.get(name)
        call = _Call(func, args, kwargs)
        if rule is None or not call.meets_nan():
            return call.as_is()
        return call.delivered(rule(call))


@dataclass(frozen=True)
class _Call:
    """An operation with its arguments."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @cached_property
    def given(self) -> dict[str, Any]:
        """The arguments by name, in the order of the schema."""
        named = {arg.name: self.kwargs.get(arg.name, arg.default_value) for arg in self.func._schema.arguments}
        return named | dict(zip(named, self.args, strict=False))

    def as_is(self) -> Any:
        return self.func(*self.args, **self.kwargs)

    def meets_nan(self) -> bool:
        """Whether any input has a dead coordinate; of sparse tensors that is not known, and they run as they are."""
        inputs = self.inputs()
        return all(each.layout == torch.strided for each in inputs) and any(_dead(each).any() for each in inputs)

    def inputs(self) -> list[Tensor]:
        """The tensors that are read."""
        values = (self.given[arg.name] for arg in self.func._schema.arguments if not arg.is_out)
        return [value for value in values if isinstance(value, Tensor)]

    def again(self, /, **replaced: Any) -> Any:
        """The operation itself on other values. Those must be fresh tensors, which an in-place operation may use up."""
        positional, by_name = [], {}
        for arg in self.func._schema.arguments:
            value = replaced.get(arg.name, self.given[arg.name])
            if arg.is_out:
                by_name[arg.name] = value.new_empty(0)
            elif arg.kwarg_only:
                by_name[arg.name] = value
            else:
                positional.append(value)
        return self.func(*positional, **by_name)

    def delivered(self, results: Any) -> Any:
        """The results where the operation owes them: in the tensors it writes to, if it does."""
        written = [arg.name for arg in self.func._schema.arguments if arg.alias_info and arg.alias_info.is_write]
        if not written:
            return results
        targets = [self.given[name] for name in written]
        for target, result in zip(targets, results if isinstance(results, tuple) else (results,), strict=True):
            if result is not target:
                target.resize_(result.shape).copy_(result)
        return targets[0] if len(targets) == 1 else tuple(targets)


_Rule = Callable[[_Call], Any]
_RULES: dict[str, _Rule] = {}


def _rule(*names: str) -> Callable[[_Rule], _Rule]:
    """Registers what an operation does with NaN, under its name without namespace, overload and trailing underscore."""

    def register(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def _name(func: Any) -> str:
    return str(func._schema.name).rpartition("::")[2].removesuffix("_")


def _dead(tensor: Tensor) -> Tensor:
    return tensor.isnan()


def _filled(tensor: Tensor, value: float) -> Tensor:
    """A copy with a value for the dead coordinates that has no effect on the operation to follow."""
    return tensor.masked_fill(_dead(tensor), value)


def _marked(results: Any, dead: Tensor) -> Any:
    """The results with NaN at dead coordinates; in place, which keeps the memory layout. Indices cannot be marked."""
    for result in results if isinstance(results, tuple) else (results,):
        if (result.is_floating_point() or result.is_complex()) and result.shape == dead.shape:
            result.masked_fill_(dead, math.nan)
    return results


# Pointwise: a dead input coordinate makes the output coordinate dead. Most kernels do so by themselves, but clamping
# kernels may swallow NaN, `nan ** 0` is 1, and `nan_to_num` would bring the dead back to life.

# These choose between values rather than compute with them: masking attention scores must work for dead heads, too.
_CHOOSING = {"where", "masked_fill"}
# Pointwise by nature though torch does not tag them.
_UNTAGGED = {"hardswish", "log_sigmoid_forward", "_prelu_kernel"}


def _is_pointwise(func: Any, name: str) -> bool:
    if name in _CHOOSING:
        return False
    if torch.Tag.pointwise in func.tags or name in _UNTAGGED:
        return True
    sibling = getattr(getattr(torch.ops.aten, name, None), "default", None)  # in-place and out variants lack the tag
    return sibling is not None and torch.Tag.pointwise in sibling.tags


def _pointwise(call: _Call) -> Any:
    dead = reduce(torch.logical_or, map(_dead, call.inputs()))
    return _marked(call.as_is(), dead)


# Contractions, sums of products: dead terms are left out, and an output coordinate without a live term is dead.


def _contracted(product: Callable[..., Tensor], *factors: Tensor) -> Tensor:
    """Counting live terms is the same product, of zeros and ones."""
    live = product(*((~_dead(factor)).double() for factor in factors))
    value = product(*(_filled(factor, 0) for factor in factors))
    return value.masked_fill_(live < 0.5, math.nan)


@_rule("mm", "bmm", "mv", "dot")
def _matmul(call: _Call) -> Tensor:
    left, right = call.inputs()
    return _contracted(torch.matmul, left, right)


@_rule("vdot")
def _vdot(call: _Call) -> Tensor:
    return _contracted(torch.vdot, *call.inputs())


@_rule("_trilinear")
def _trilinear(call: _Call) -> Tensor:
    return _contracted(lambda i1, i2, i3: call.again(i1=i1, i2=i2, i3=i3), *call.inputs())


@_rule("_grouped_mm")
def _grouped_matmul(call: _Call) -> Tensor:
    left, right, offs, bias = (call.given[name] for name in ("self", "mat2", "offs", "bias"))
    product = _contracted(lambda a, b: grouped_product(a, b, offs), left, right)
    return product if bias is None else product + bias


@_rule("addmm", "baddbmm", "addmv", "addbmm")
def _added_matmul(call: _Call) -> Any:
    added, left, right = call.inputs()
    sums_batch = _name(call.func) == "addbmm"
    product = _contracted(lambda a, b: (a @ b).sum(0) if sums_batch else a @ b, left, right) * call.given["alpha"]
    return product + call.given["beta"] * added if call.given["beta"] != 0 else product


@_rule("convolution", "_convolution")
def _convolution(call: _Call) -> Any:
    def convolved(values: Tensor, kernel: Tensor) -> Any:
        return call.again(input=values, weight=kernel, bias=None)

    values, kernel, bias = call.given["input"], call.given["weight"], call.given["bias"]
    live = convolved((~_dead(values)).double(), (~_dead(kernel)).double()) > 0.5
    # Where a window holds padding only, or a transposed kernel does not reach, a live channel is rightly 0.
    unreached = convolved(torch.ones_like(values).double(), torch.ones_like(kernel).double()) < 0.5
    live_channel = live.flatten(2).any(2).any(0).view(1, -1, *[1] * (live.dim() - 2))
    result = convolved(_filled(values, 0), _filled(kernel, 0))
    result.masked_fill_(~live & ~(unreached & live_channel), math.nan)
    return result if bias is None else result.add_(bias.view(live_channel.shape))


# Statistics are taken over the live coordinates only, and are dead where there is none.

_NEUTRAL = {
    "sum": 0.0,
    "prod": 1.0,
    "amax": -math.inf,
    "max": -math.inf,
    "amin": math.inf,
    "min": math.inf,
    "logsumexp": -math.inf,
}


def _axes(call: _Call, values: Tensor) -> tuple[int, ...]:
    dim = call.given.get("dim")
    if dim is None or dim == []:
        return tuple(range(values.dim()))
    return (dim,) if isinstance(dim, int) else tuple(dim)


def _reduced(call: _Call, neutral: float) -> Any:
    values = call.given["self"]
    dead = _dead(values).all(dim=_axes(call, values), keepdim=call.given.get("keepdim", False))
    return _marked(call.again(self=_filled(values, neutral)), dead)


@_rule(*_NEUTRAL)
def _reduction(call: _Call) -> Any:
    return _reduced(call, _NEUTRAL[_name(call.func)])


@_rule("linalg_vector_norm", "norm")
def _norm(call: _Call) -> Tensor:
    order = call.given.get("ord", call.given.get("p"))
    # An order below 0 looks for the smallest magnitudes.
    return _reduced(call, 0.0 if order is None or order >= 0 else math.inf)  # type: ignore[no-any-return]


def _mean_of(values: Tensor, axes: Iterable[int], correction: float = 0) -> Tensor:
    """The mean over live coordinates, with the axes kept; NaN without any, by division of 0 by 0."""
    count = (~_dead(values)).sum(dim=tuple(axes), keepdim=True)
    return _filled(values, 0).sum(dim=tuple(axes), keepdim=True) / (count - correction).clamp(min=0)


def _shaped(kept: Tensor, call: _Call, axes: tuple[int, ...]) -> Tensor:
    return kept if call.given.get("keepdim", False) or not kept.dim() else kept.squeeze(axes)


@_rule("mean")
def _mean(call: _Call) -> Tensor:
    values = call.given["self"].to(call.given["dtype"] or call.given["self"].dtype)
    axes = _axes(call, values)
    return _shaped(_mean_of(values, axes), call, axes)


@_rule("var", "std", "var_mean", "std_mean")
def _spread(call: _Call) -> Any:
    values, correction = call.given["self"], call.given["correction"]
    axes = _axes(call, values)
    mean = _mean_of(values, axes)
    spread = _mean_of((values - mean).abs().square(), axes, 1 if correction is None else correction)
    kind, _, with_mean = _name(call.func).partition("_")
    spread = _shaped(spread.sqrt() if kind == "std" else spread, call, axes)
    return (spread, _shaped(mean, call, axes)) if with_mean else spread


# Along an axis: the dead coordinates stay dead, and the others do not notice them.

_UNNOTICED = {
    "cumsum": 0.0,
    "cumprod": 1.0,
    "cummax": -math.inf,
    "cummin": math.inf,
    "logcumsumexp": -math.inf,
    "_softmax": -math.inf,
    "_log_softmax": -math.inf,
    "_safe_softmax": -math.inf,
}


@_rule(*_UNNOTICED)
def _along_axis(call: _Call) -> Any:
    values = call.given["self"]
    return _marked(call.again(self=_filled(values, _UNNOTICED[_name(call.func)])), _dead(values))


# Normalisations. Batch and instance normalisation work channel by channel, which NaN leaves by itself; root-mean-square
# normalisation is composite and arrives in its parts.


def _affine(values: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = values if weight is None else values * weight
    return scaled if bias is None else scaled + bias


def _standardised(values: Tensor, axes: Iterable[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The values with mean 0 and variance 1 among the live ones, with that mean and the reciprocal deviation."""
    axes = tuple(axes)
    mean = _mean_of(values, axes)
    reciprocal = (_mean_of((values - mean).square(), axes) + eps).rsqrt()
    return (values - mean) * reciprocal, mean, reciprocal


@_rule("native_layer_norm")
def _layer_norm(call: _Call) -> tuple[Tensor, Tensor, Tensor]:
    axes = range(-len(call.given["normalized_shape"]), 0)
    standardised, mean, reciprocal = _standardised(call.given["input"], axes, call.given["eps"])
    return _affine(standardised, call.given["weight"], call.given["bias"]), mean, reciprocal


@_rule("native_group_norm")
def _group_norm(call: _Call) -> tuple[Tensor, Tensor, Tensor]:
    values, weight, bias, batch, channels, _, groups, eps = tuple(call.given.values())[:8]
    standardised, mean, reciprocal = _standardised(values.reshape(batch, groups, -1), (2,), eps)
    per_channel = (1, channels, *[1] * (values.dim() - 2))
    weight, bias = (None if each is None else each.view(per_channel) for each in (weight, bias))
    return _affine(standardised.view(values.shape), weight, bias), mean.squeeze(2), reciprocal.squeeze(2)


@_rule("_weight_norm_interface")
def _weight_norm(call: _Call) -> tuple[Tensor, Tensor]:
    direction, magnitude, dim = call.given["v"], call.given["g"], call.given["dim"]
    others = [axis for axis in range(direction.dim()) if axis != dim % direction.dim()]
    norm = _filled(direction, 0).square().sum(others, keepdim=True).sqrt()
    return direction * (magnitude / norm), norm


@_rule(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
def _attention(call: _Call) -> Any:
    """The fused kernels, in steps; the unfused form of attention is composite and arrives in its parts."""
    query, key, value = (call.given[name] for name in ("query", "key", "value"))
    if call.given["dropout_p"]:  # random: nothing to prove
        return call.as_is()
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], dim=1) for each in (key, value))
    scale = call.given["scale"]
    scores = _contracted(torch.matmul, query, key.mT) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    mask = call.given.get("attn_mask", call.given.get("attn_bias"))
    if call.given["is_causal"]:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        # Added, not filled in: what is masked in a dead head must stay dead.
        scores = scores + (torch.where(mask, 0.0, -math.inf) if mask.dtype == torch.bool else mask)
    weights = _marked(torch._safe_softmax(_filled(scores, -math.inf), -1), _dead(scores))
    output = _contracted(torch.matmul, weights, value)
    if output.shape == query.shape:  # the kernels follow the layout of the query, and models `view` the result
        output = torch.empty_like(query).copy_(output)
    unused = (query.new_empty(0) if str(each.type) == "Tensor" else 0 for each in call.func._schema.returns[1:])
    return (output, *unused)
