"""Absence: a mode in which NaN means "removed", and what each kind of operation makes of it.

Sums leave NaN out, statistics are taken without it, and what is computed from it alone is removed as well. Operations
without a rule run as they are: NaN spreads, and a proof fails rather than passing wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from secateur.surgery.proof.float64 import DecomposingMode, grouped_product, is_pointwise, operation_name


class RemovedIsNaN(DecomposingMode):
    """Makes NaN mean "removed" in every operation that has a rule below; one that meets no NaN runs untouched.

    Combined with `Float64`, in either order; entering `Float64` last is the quicker one.
    """

    def perform(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rule = _rule_of(func)
        if rule is None:
            return func(*args, **kwargs)
        call = Operation(func, args, kwargs)
        return call.delivered(rule(call)) if call.meets_nan() else call.as_is()


@dataclass(frozen=True)
class Operation:
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
        """Whether any input has a dead coordinate; of sparse tensors that is not known, and they run as they are.

        A sum shows it ten times faster than a look at every number. Infinities that cancel out are taken for dead; the
        rules find that nothing is.
        """
        inputs = self.inputs()
        return all(each.layout == torch.strided for each in inputs) and any(bool(each.sum().isnan()) for each in inputs)

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


_Rule = Callable[[Operation], Any]
_RULES: dict[str, _Rule] = {}


@cache
def _rule_of(func: Any) -> _Rule | None:
    """None for what treats NaN as it should by itself."""
    name = operation_name(func)
    if name in _SPREADS_NAN:
        return None
    return _pointwise if is_pointwise(func) and name not in _CHOOSING else _RULES.get(name)


def rule(*names: str) -> Callable[[_Rule], _Rule]:
    """Registers what an ATen operation does with NaN, under its name without overload and trailing underscore."""

    def register(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def is_dead(tensor: Tensor) -> Tensor:
    return tensor.isnan()


def filled(tensor: Tensor, value: float) -> Tensor:
    """A copy with a value for the dead coordinates that has no effect on the operation to follow."""
    return tensor.masked_fill(is_dead(tensor), value)


def marked(results: Any, dead: Tensor) -> Any:
    """The results with NaN at dead coordinates; in place, which keeps the memory layout. Indices cannot be marked."""
    for result in results if isinstance(results, tuple) else (results,):
        if (result.is_floating_point() or result.is_complex()) and result.shape == dead.shape:
            result.masked_fill_(dead, math.nan)
    return results


# Pointwise: a dead input coordinate makes the output coordinate dead. Most kernels do so by themselves, but clamping
# kernels may swallow NaN, `nan ** 0` is 1, and `nan_to_num` would bring the dead back to life.

# The arithmetic of IEEE 754 gives NaN for NaN.
_SPREADS_NAN = frozenset("add sub rsub mul div neg relu hardtanh leaky_relu sigmoid tanh silu gelu hardswish".split())
# These choose between values rather than compute with them: masking attention scores must work for dead heads, too.
_CHOOSING = {"where", "masked_fill"}


def _pointwise(call: Operation) -> Any:
    dead = reduce(torch.logical_or, map(is_dead, call.inputs()))
    return marked(call.as_is(), dead)


# Contractions, sums of products: dead terms are left out, and an output coordinate without a live term is dead.


def contracted(product: Callable[..., Tensor], *factors: Tensor) -> Tensor:
    """Counting live terms is the same product, of zeros and ones."""
    live = product(*((~is_dead(factor)).double() for factor in factors))
    value = product(*(filled(factor, 0) for factor in factors))
    return value.masked_fill_(live < 0.5, math.nan)


@rule("mm", "bmm", "mv", "dot")
def _matmul(call: Operation) -> Tensor:
    left, right = call.inputs()
    return contracted(torch.matmul, left, right)


@rule("vdot")
def _vdot(call: Operation) -> Tensor:
    return contracted(torch.vdot, *call.inputs())


@rule("_trilinear")
def _trilinear(call: Operation) -> Tensor:
    return contracted(lambda i1, i2, i3: call.again(i1=i1, i2=i2, i3=i3), *call.inputs())


@rule("_grouped_mm")
def _grouped_matmul(call: Operation) -> Tensor:
    left, right, offs, bias = (call.given[name] for name in ("self", "mat2", "offs", "bias"))
    product = contracted(lambda a, b: grouped_product(a, b, offs), left, right)
    return product if bias is None else product + bias


@rule("addmm", "baddbmm", "addmv", "addbmm")
def _added_matmul(call: Operation) -> Any:
    added, left, right = call.inputs()
    sums_batch = operation_name(call.func) == "addbmm"
    product = contracted(lambda a, b: (a @ b).sum(0) if sums_batch else a @ b, left, right) * call.given["alpha"]
    return product + call.given["beta"] * added if call.given["beta"] != 0 else product


@rule("convolution", "_convolution")
def _convolution(call: Operation) -> Any:
    values, kernel, groups = (call.given[name] for name in ("input", "weight", "groups"))
    dead_values, dead_kernel = _uniformly_dead(values.transpose(0, 1)), _uniformly_dead(kernel.flatten(0, 1))
    if dead_values is None or dead_kernel is None or call.given["transposed"]:
        return _convolution_of_scattered(call)
    live = ~dead_kernel.view(groups, -1, kernel.shape[1]) & ~dead_values.view(groups, 1, -1)
    return _convolution_of_live(call, live) if live.any() else _convolution_of_scattered(call)


def _uniformly_dead(values: Tensor) -> Tensor | None:
    """Which coordinates of the first axis are dead; None where one is so in parts."""
    if not values.numel():
        return None
    dead = is_dead(values).flatten(1).view(torch.uint8)  # of bytes, torch finds the extremes fast
    in_parts, wholly = dead.amax(1), dead.amin(1)
    return wholly.bool() if torch.equal(in_parts, wholly) else None


def _convolution_of_live(call: Operation, live: Tensor) -> Tensor:
    """Where whole channels are dead: a convolution of the others. `live` says by group, output and input which terms
    are; several groups have to stay of one size, and go only as a whole."""
    values, kernel, bias = (call.given[name] for name in ("input", "weight", "bias"))
    whole = live.any(2).any(1)[:, None, None].expand_as(live) if len(live) > 1 else live
    outputs, inputs = whole.any(2).flatten(), whole.any(1).flatten()
    part = values if inputs.all() else values[:, inputs]
    part = part.contiguous(memory_format=suggest_memory_format(values))  # the layout is handed on, and models `view` it
    weight = filled(kernel[outputs] if len(live) > 1 else kernel[outputs][:, inputs], 0)
    weight = weight.contiguous(memory_format=suggest_memory_format(kernel))
    remaining: Tensor = call.again(
        input=filled(part, 0) if len(live) > 1 and part.sum().isnan() else part,
        weight=weight,
        bias=None if bias is None else bias[outputs],
        groups=int(whole.any(2).any(1).sum()),
    )
    result = remaining.new_full((len(values), len(kernel), *remaining.shape[2:]), math.nan)
    result = result.contiguous(memory_format=suggest_memory_format(remaining))
    result[:, outputs] = remaining
    return result.index_fill_(1, (~live.any(2)).flatten().nonzero().flatten(), math.nan)


def _convolution_of_scattered(call: Operation) -> Any:
    """Where some numbers of a channel are dead and others are not: each output is live that has a live term."""

    def convolved(values: Tensor, kernel: Tensor) -> Any:
        return call.again(input=values, weight=kernel, bias=None)

    values, kernel, bias = call.given["input"], call.given["weight"], call.given["bias"]
    live = convolved((~is_dead(values)).double(), (~is_dead(kernel)).double()) > 0.5
    # Where a window holds padding only, or a transposed kernel does not reach, a live channel is rightly 0.
    unreached = convolved(torch.ones_like(values).double(), torch.ones_like(kernel).double()) < 0.5
    live_channel = live.flatten(2).any(2).any(0).view(1, -1, *[1] * (live.dim() - 2))
    result = convolved(filled(values, 0), filled(kernel, 0))
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


def _axes(call: Operation, values: Tensor) -> tuple[int, ...]:
    dim = call.given.get("dim")
    if dim is None or dim == []:
        return tuple(range(values.dim()))
    return (dim,) if isinstance(dim, int) else tuple(dim)


def _reduced(call: Operation, neutral: float) -> Any:
    values = call.given["self"]
    dead = is_dead(values).all(dim=_axes(call, values), keepdim=call.given.get("keepdim", False))
    return marked(call.again(self=filled(values, neutral)), dead)


@rule(*_NEUTRAL)
def _reduction(call: Operation) -> Any:
    return _reduced(call, _NEUTRAL[operation_name(call.func)])


@rule("linalg_vector_norm", "norm")
def _norm(call: Operation) -> Tensor:
    order = call.given.get("ord", call.given.get("p"))
    # An order below 0 looks for the smallest magnitudes.
    return _reduced(call, 0.0 if order is None or order >= 0 else math.inf)  # type: ignore[no-any-return]


def mean_of(values: Tensor, axes: Iterable[int], correction: float = 0) -> Tensor:
    """The mean over live coordinates, with the axes kept; NaN without any, by division of 0 by 0."""
    count = (~is_dead(values)).sum(dim=tuple(axes), keepdim=True)
    return filled(values, 0).sum(dim=tuple(axes), keepdim=True) / (count - correction).clamp(min=0)


def _shaped(kept: Tensor, call: Operation, axes: tuple[int, ...]) -> Tensor:
    return kept if call.given.get("keepdim", False) or not kept.dim() else kept.squeeze(axes)


@rule("mean")
def _mean(call: Operation) -> Tensor:
    values = call.given["self"].to(call.given["dtype"] or call.given["self"].dtype)
    axes = _axes(call, values)
    return _shaped(mean_of(values, axes), call, axes)


@rule("var", "std", "var_mean", "std_mean")
def _spread(call: Operation) -> Any:
    values, correction = call.given["self"], call.given["correction"]
    axes = _axes(call, values)
    mean = mean_of(values, axes)
    spread = mean_of((values - mean).abs().square(), axes, 1 if correction is None else correction)
    kind, _, with_mean = operation_name(call.func).partition("_")
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


@rule(*_UNNOTICED)
def _along_axis(call: Operation) -> Any:
    values = call.given["self"]
    return marked(call.again(self=filled(values, _UNNOTICED[operation_name(call.func)])), is_dead(values))


@rule("topk")
def _chosen(call: Operation) -> tuple[Tensor, Tensor]:
    """The best of the live coordinates, by their numbers in the full size."""
    values, axis = call.given["self"], call.given["dim"]
    best, positions = call.again(self=filled(values, -math.inf if call.given["largest"] else math.inf))
    return marked(best, is_dead(values).gather(axis, positions)), positions


@rule("constant_pad_nd")
def _padding(call: Operation) -> Tensor:
    """Axis after axis, because what is added beside coordinates that are all dead is dead: a removed channel has no
    margin, and a norm over channels must not count one."""
    values: Tensor = call.given["self"]
    pad = call.given["pad"]
    for i, margins in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dead = is_dead(values).all(dim=-1 - i, keepdim=True)
        values = call.again(self=values, pad=[0, 0] * i + [*margins]).masked_fill_(dead, math.nan)
    return values
