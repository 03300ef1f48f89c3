"""Lookups by index: the indexed axis stays whole, because indices are numbers in the data; the other axes pass. Where
the indices are positions, the indexed axis loses what they lose: `couple/positions.py`."""

from __future__ import annotations

import numpy as np

from secateur.capture import OpCall
from secateur.couple.coupling import Choice, Coupling
from secateur.couple.rules.registry import broadcast, dimension, rule, unknown
from secateur.couple.units import Axis, fixed_axis


@rule("embedding")
def embedding(coupling: Coupling, call: OpCall) -> None:
    weight, indices = call["weight"], call["indices"]
    rows, channels = coupling.axes(weight)
    if coupling.positions.look_up(call, indices, rows, "rows are looked up by number"):
        coupling.note_experts(weight, rows)
    coupling.contract(weight, 0)
    coupling.set(call.out, [*coupling.axes(indices), channels], call)


@rule("index", "_unsafe_index", "index_put", "_unsafe_index_put", "_index_put_impl")
def index(coupling: Coupling, call: OpCall) -> None:
    x, indices = call["self"], list(call["indices"])
    axes = coupling.axes(x)
    if any(value is not None and value.boolean for value in indices):
        return masked(coupling, call)
    indices += [None] * (len(axes) - len(indices))
    indexed = [i for i, value in enumerate(indices) if value is not None]
    for i in indexed:
        if coupling.positions.look_up(call, indices[i], axes[i], "it is indexed by numbers"):
            coupling.note_experts(x, axes[i])
    if indexed == [0] and not indices[0].shape:
        coupling.same_tensor(call.out, x, range(1, len(axes)))
    values = [indices[i] for i in indexed]
    picked = broadcast(coupling, call, values, np.broadcast_shapes(*(value.shape for value in values)))
    rest = [axes[i] for i in range(len(axes)) if i not in indexed]
    adjacent = indexed == list(range(indexed[0], indexed[0] + len(indexed)))
    at = indexed[0] if adjacent else 0
    result = [*rest[:at], *picked, *rest[at:]]
    return _read_or_write(coupling, call, result)


def masked(coupling: Coupling, call: OpCall) -> None:
    """x[mask]: the masked axes stay whole and become one, whose length depends on the data; the others pass."""
    x, indices = call["self"], call["indices"]
    given = [i for i, value in enumerate(indices) if value is not None]
    if len(given) != 1:
        return unknown(coupling, call)
    first, mask = given[0], indices[given[0]]
    axes = coupling.axes(x)
    past = first + len(mask.shape)
    coupling.pin(call, "a mask is laid over it", *axes[first:past], *coupling.axes(mask))
    length = 0 if "put" in call.op else call.out.shape[first]
    return _read_or_write(coupling, call, [*axes[:first], coupling.picked(axes[first:past], length), *axes[past:]])


def _read_or_write(coupling: Coupling, call: OpCall, selected: list[Axis]) -> None:
    """The selection is the result, or takes on values that broadcast to it."""
    if "put" not in call.op:
        return coupling.set(call.out, selected, call)
    written = call["values"]
    offset = len(selected) - len(written.shape)
    for i, axis in enumerate(coupling.axes(written)):
        if axis.shape[1] == selected[i + offset].shape[1]:
            coupling.tie(call, selected[i + offset], axis)
        elif axis.shape[1] > 1:
            coupling.pin(call, "it is written to where a mask says", axis)
    return coupling.set(call.out, coupling.axes(call["self"]), call)


@rule("nonzero")
def nonzero(coupling: Coupling, call: OpCall) -> None:
    """How many there are follows from the choice of the data, and so does not say how long the axis is."""
    x = call["self"]
    axes = coupling.axes(x)
    if len(axes) == 1 and coupling.positions.depends_on_choice(x):
        coupling.choices.append(Choice(call, axes[0], 0, "its values are looked at"))
        coupling.positions.add(call.out, axes[0])
    else:
        coupling.pin(call, "its values are looked at", *axes)
    picked, dimensions = call.out.shape
    coupling.set(call.out, [coupling.picked(axes, picked), fixed_axis(dimensions)], call)


@rule("index_select")
def index_select(coupling: Coupling, call: OpCall) -> None:
    x, indices = call["self"], call["index"]
    d, axes = dimension(call["dim"], len(x.shape)), list(coupling.axes(x))
    if coupling.positions.look_up(call, indices, axes[d], "it is indexed by numbers"):
        coupling.note_experts(x, axes[d])
    axes[d] = coupling.axes(indices)[0] if indices.shape else fixed_axis(1)
    coupling.set(call.out, axes, call)


@rule("index_add", "index_copy")
def index_add(coupling: Coupling, call: OpCall) -> None:
    x, source = call["self"], call["source"]
    d = dimension(call["dim"], len(x.shape))
    own, other = coupling.axes(x), coupling.axes(source)
    coupling.positions.look_up(call, call["index"], own[d], "it is indexed by numbers")
    coupling.pin(call, "it is indexed by numbers", other[d])
    axes = [a if i == d else coupling.tie(call, a, b) for i, (a, b) in enumerate(zip(own, other, strict=True))]
    coupling.set(call.out, axes, call)


@rule("gather", "scatter", "scatter_add", "scatter_reduce")
def gather(coupling: Coupling, call: OpCall) -> None:
    x = call["self"]
    d = dimension(call["dim"], len(x.shape))
    others = [value for value in call.tensors if value is not x]
    for value in (x, *others):
        if len(value.shape) != len(x.shape):
            return unknown(coupling, call)
    for value in others:
        coupling.pin(call, "it is indexed by numbers", coupling.axes(value)[d])
    coupling.positions.look_up(call, call["index"], coupling.axes(x)[d], "it is indexed by numbers")
    reference = call["index"] if call.op == "gather" else x
    for value in (x, *others):
        for i, (a, b) in enumerate(zip(coupling.axes(reference), coupling.axes(value), strict=True)):
            if i != d and a.shape[1] == b.shape[1]:
                coupling.tie(call, a, b)
            elif i != d:
                coupling.pin(call, "only a part of it is indexed", a, b)
    return coupling.set(call.out, coupling.axes(reference), call)


@rule("sort", "argsort", "kthvalue", "mode", "cummax", "cummin")
def order(coupling: Coupling, call: OpCall) -> None:
    """The results name coordinates by number."""
    x = call["self"]
    d = dimension(-1 if call["dim"] is None else call["dim"], len(x.shape))
    coupling.pin(call, "its coordinates are ranked", coupling.axes(x)[d])

    def result_axes(shape: tuple[int, ...]) -> list[Axis]:
        if len(shape) != len(x.shape):
            return [axis for i, axis in enumerate(coupling.axes(x)) if i != d]
        return [
            fixed_axis(n) if i == d else axis for i, (n, axis) in enumerate(zip(shape, coupling.axes(x), strict=True))
        ]

    for value in call.outputs:
        if value is not None:
            coupling.set(value, result_axes(value.shape), call)
