"""What the operators of a model notice of each channel: found by one pass in which everything unknown is NaN.

A channel that is zero, or that only zeros are multiplied with, adds nothing to a sum. One that is constant adds a
constant, which a bias can take over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import zip_longest
from math import nan
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from secateur.base import SecateurError, as_call, copied, copy_of_model
from secateur.capture import CallRecorder, Leaf, OpCall, Trace, Value, bound_arguments, capture
from secateur.channels.dissection import Dissection
from secateur.channels.unknowns import UnknownIsNaN
from secateur.couple import Axis
from secateur.surgery import Float64, lifted

_ANOTHER_WAY = "The model does not take the same way twice, so that nothing is known of its channels."

Flags = NDArray[np.bool_]
Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Reading:
    """What one call notices of the coordinates of one axis, if they go."""

    axis: Axis
    noticed: Flags
    """For each output of the call and each coordinate; one row where the outputs are not told apart."""
    outputs: Axis | None = None
    """The axis of the outputs that are told apart."""
    taker: str = ""
    """The bias or running mean that can take over what constant coordinates add."""
    taken: Numbers | None = None
    """What is added to the taker for each coordinate, of the shape of `noticed`."""
    reason: str = ""
    """Why coordinates that add a constant cannot go."""
    constant: Flags | None = None
    """Those of them."""


@dataclass(frozen=True, eq=False)
class _Noticed:
    """The same as an operator's rule tells it."""

    flags: Flags
    weights: Numbers | None = None
    """What each coordinate is multiplied with for each output, where that is the same in all places."""
    constants: Numbers | None = None
    """The value of each coordinate in all places; NaN where it depends on the input or the place."""
    outputs: tuple[Value, int] | None = None
    """The axis of a weight along which the outputs lie."""


def find_readings(module: nn.Module, dissection: Dissection, example_inputs: Any) -> list[Reading]:
    """Of all calls of the example pass, in order. Where the data decides what is computed, code fails on NaN, or the
    model remembers something of its inputs, only zeros in the weights themselves are counted on."""
    args, kwargs = lifted(copied(*as_call(example_inputs)))
    if not dissection.trace.data_dependent:
        with suppress(SecateurError):
            unknown_args, unknown_kwargs = tree_map_only(Tensor, _unknown, (args, kwargs))
            return _watched(module, dissection, unknown_args, unknown_kwargs, only_weights=False)
    return _watched(module, dissection, args, kwargs, only_weights=True)


def _unknown(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, nan) if tensor.is_floating_point() or tensor.is_complex() else tensor


def _watched(module: nn.Module, dissection: Dissection, args: Any, kwargs: Any, only_weights: bool) -> list[Reading]:
    readings: list[Reading] = []
    model = copy_of_model(module).double()
    with nullcontext() if only_weights else UnknownIsNaN(), Float64():
        trace = capture(model, args, kwargs, lambda leaves: _Watcher(leaves, dissection, readings, only_weights))
    if trace.example_calls != dissection.trace.example_calls:
        raise SecateurError(_ANOTHER_WAY)
    return readings


class _Watcher(CallRecorder):
    def __init__(self, leaves: list[Leaf], dissection: Dissection, readings: list[Reading], only_weights: bool) -> None:
        super().__init__(leaves)
        self._trace, self._coupling = dissection.trace, dissection.coupling
        self._takers = _Takers(dissection.trace)
        self._readings = readings
        self._only_weights = only_weights
        self._state = {id(tensor) for tensor, kind, _ in leaves if kind != "input" and tensor.is_floating_point()}

    def emit(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any, name: str = "") -> None:
        index = len(self.calls)
        super().emit(op, args, kwargs, out, name)
        if index >= self._trace.example_calls:
            return  # what a pass in training mode reads is not promised to stay
        call = self._trace.calls[index]
        if self.calls[index].op != call.op:
            raise SecateurError(_ANOTHER_WAY)
        muted, self.muted = self.muted, True  # what is computed here is no part of the model
        mixed = self._coupling.mixed.get(index, ())
        if any(len(self._coupling.units.resolve(axis)) for axis in mixed):
            given = {} if op is None else bound_arguments(op, args, kwargs)
            self._note(call, mixed, {key: self._numbers(call[key], item) for key, item in given.items()})
        if index == self._trace.example_calls - 1 and not self._only_weights:
            self._require_no_memory()
        self.muted = muted

    def _require_no_memory(self) -> None:
        for key, (tensor, before) in self._overwritten.items():
            if key in self._state and not tensor.equal(before):
                raise SecateurError("The model remembers something of its inputs.")

    def _numbers(self, value: Any, given: Any) -> Any:
        if isinstance(given, list | tuple):
            return [self._numbers(*pair) for pair in zip(value, given, strict=True)]
        if not isinstance(given, Tensor):
            return given
        if self._only_weights and value.kind not in ("parameter", "buffer"):
            return np.full(tuple(given.shape), nan)
        return given.detach().cpu().numpy()

    def _note(self, call: OpCall, mixed: Sequence[Axis], given: Mapping[str, Any]) -> None:
        told = _RULES[call.op](call, given) if call.op in _RULES else ()
        for axis, noticed in zip_longest(mixed, told):
            if noticed is None:
                noticed = _Noticed(np.ones((1, axis.shape[1]), bool))
            self._readings.append(self._reading(call, axis, noticed))

    def _reading(self, call: OpCall, axis: Axis, noticed: _Noticed) -> Reading:
        outputs = None
        if noticed.outputs is not None:
            weight, dim = noticed.outputs
            outputs = self._coupling.axes(weight)[dim]
        if noticed.weights is None or noticed.constants is None:
            return Reading(axis, noticed.flags, outputs)
        constant = np.isfinite(noticed.constants) & np.isfinite(noticed.weights).all(0) & noticed.flags.any(0)
        taker = self._takers.of(call)
        if isinstance(taker, str):
            return Reading(axis, noticed.flags, outputs, reason=taker, constant=constant)
        leaf, sign = taker
        taken = sign * np.where(constant, noticed.weights * np.where(constant, noticed.constants, 0), 0)
        return Reading(axis, noticed.flags & ~constant, outputs, leaf.name, taken)


class _Takers:
    """Finds what can take over a constant that is added to every output of a call."""

    def __init__(self, trace: Trace) -> None:
        self._users: dict[int, list[OpCall]] = {}
        self._returned = {output.value.index for output in trace.outputs}
        for call in trace.calls[: trace.example_calls]:
            for value in call.tensors:
                self._users.setdefault(value.index, []).append(call)

    def of(self, call: OpCall) -> tuple[Value, float] | str:
        """A bias or the running mean of a batch norm, with the sign that it takes it with; or why there is none."""
        if call.op == "convolution" and (any(call["padding"]) or call["transposed"]):
            return f"{call.module} does not see it alike everywhere, because it pads with zeros"
        bias = call["self"] if call.op == "addmm" else call["bias"]
        mean = self._running_mean(call) if bias is None else None
        taker = bias or mean
        if taker is None or taker.kind not in ("parameter", "buffer") or len(self._users[taker.index]) > 1:
            return f"{call.module} has no bias of its own that could take it over"
        if len(taker.shape) != 1 or any(call[factor] not in (None, 1) for factor in ("alpha", "beta")):
            return f"{call.module} does not add its bias as it is"
        return taker, 1.0 if bias is not None else -1.0

    def _running_mean(self, call: OpCall) -> Value | None:
        """Of the batch norm that alone reads what the call gives."""
        users = self._users.get(call.out.index, [])
        if len(users) != 1 or call.out.index in self._returned or "batch_norm" not in users[0].op:
            return None
        norm = users[0]
        return norm["running_mean"] if norm["input"] is call.out and not norm["training"] else None


# What each operator notices, for the axes that it mixes in the order in which its rule in `couple` names them. All of
# the coordinates where there is no rule here.

_Rule = Callable[[OpCall, Mapping[str, Any]], Iterable[_Noticed]]
_RULES: dict[str, _Rule] = {}


def _rule(*operators: str) -> Callable[[_Rule], _Rule]:
    def register(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(operators, rule))
        return rule

    return register


def _any(flags: Flags, axis: int) -> Flags:
    """Along all axes but one."""
    found: Flags = np.any(np.moveaxis(flags, axis, 0).reshape(flags.shape[axis], -1), axis=1)
    return found


def _both(left: Numbers, along: int, right: Numbers, across: int) -> _Noticed:
    return _Noticed((_any(left != 0, along) & _any(right != 0, across))[None])


def _weighted(read: Numbers, weight: Numbers, outputs: tuple[Value, int]) -> _Noticed:
    """Of values [places, coordinates] and weights [outputs, coordinates, taps]."""
    zero = (read == 0).all(0)
    constants = np.where((read == read[:1]).all(0), read[0], nan) if not np.iscomplexobj(read) else None
    return _Noticed((weight != 0).any(2) & ~zero, weight.sum(2), constants, outputs)


@_rule("linear")
def _linear(call: OpCall, given: Mapping[str, Any]) -> Iterable[_Noticed]:
    read, weight = given["input"], given["weight"]
    yield _weighted(read.reshape(-1, read.shape[-1]), weight[:, :, None], (call["weight"], 0))


@_rule("convolution")
def _convolution(call: OpCall, given: Mapping[str, Any]) -> Iterable[_Noticed]:
    read, weight, groups = given["input"], given["weight"], given["groups"]
    channel = read.ndim - weight.ndim + 1
    if groups == 1:
        places = np.moveaxis(read, channel, -1).reshape(-1, read.shape[channel])
        taps = weight.reshape(*weight.shape[:2], -1)
        outputs = 1 if given["transposed"] else 0
        yield _weighted(places, taps.swapaxes(0, outputs), (call["weight"], outputs))
    else:  # the coordinates are the places within a group
        values = _any(read != 0, channel).reshape(groups, -1)
        taps = (weight != 0).reshape(groups, len(weight) // groups, *weight.shape[1:2], -1).any(3)
        multiplied = taps.any(2 if given["transposed"] else 1)
        yield _Noticed((values & multiplied).any(0)[None])


@_rule("mm", "bmm", "matmul", "mv", "dot", "vdot", "addmm", "baddbmm", "addmv", "_grouped_mm")
def _product(call: OpCall, given: Mapping[str, Any]) -> Iterable[_Noticed]:
    *_, (_, left), (right_value, right) = [
        (call[name], item)
        for name, item in given.items()
        if isinstance(item, np.ndarray) and name not in ("offs", "bias")
    ]
    if right.ndim == 2 and call.op in ("mm", "matmul", "addmm"):
        yield _weighted(left.reshape(-1, left.shape[-1]), right.T[:, :, None], (right_value, 1))
    else:
        yield _both(left, -1, right, -2 if right.ndim > 1 else 0)


@_rule("scaled_dot_product_attention")
def _attention(call: OpCall, given: Mapping[str, Any]) -> Iterable[_Noticed]:
    """The width of queries and keys; the positions of keys are all noticed, because a softmax goes over them."""
    yield _both(given["query"], -1, given["key"], -1)


@_rule("sum")
def _sum(call: OpCall, given: Mapping[str, Any]) -> Iterable[_Noticed]:
    summed = given["self"]
    axes = given["dim"] if given.get("dim") not in (None, []) else range(summed.ndim)
    return [_Noticed(_any(summed != 0, axis)[None]) for axis in axes]


@_rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def _recurrent(call: OpCall, given: Mapping[str, Any]) -> Iterable[_Noticed]:
    """For every cell what goes in, what comes out, and its inner state. Rows of zeros leave a state of zero at zero."""
    weights, states = given["params"], given["hx"] if isinstance(given["hx"], list) else [given["hx"]]
    directions = 2 if given["bidirectional"] else 1
    per_cell = len(weights) // (directions * given["num_layers"])
    below = _any(given["input"] != 0, -1)
    for layer in range(given["num_layers"]):
        outputs = []
        for cell in range(layer * directions, (layer + 1) * directions):
            from_below, from_output, *rest = weights[cell * per_cell : (cell + 1) * per_cell]
            projection = rest.pop() if len(rest) % 2 else None
            first, last = ((state[cell] != 0).reshape(-1, state.shape[-1]).any(0) for state in (states[0], states[-1]))
            rows = [
                (each != 0).reshape(-1, len(last), each.size // len(each)) for each in (from_below, from_output, *rest)
            ]
            inner = last | np.any([each.any((0, 2)) for each in rows], axis=0)
            output = first | (inner if projection is None else (projection != 0).any(1))
            yield _Noticed(((from_below != 0).any(0) & below)[None])
            yield _Noticed(((from_output != 0).any(0) & output)[None])
            yield _Noticed(
                ((from_output if projection is None else projection) != 0).any(0)[None]
                & (output if projection is None else inner)[None]
            )
            outputs.append(output)
        below = np.concatenate(outputs)


@_rule("_weight_norm_interface")
def _weight_norm(call: OpCall, given: Mapping[str, Any]) -> Iterable[_Noticed]:
    """The norm goes over the axes along which there is one magnitude for all."""
    direction = given["v"]
    return [_Noticed(_any(direction != 0, axis)[None]) for axis, size in enumerate(given["g"].shape) if size == 1]
