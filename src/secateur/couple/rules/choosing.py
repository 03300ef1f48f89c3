"""Choices by rank, as routers make them among experts, and what is done with the positions: `couple/positions.py`."""

from __future__ import annotations

import numpy as np

from secateur.capture import MODULE_LOOKUP, OpCall
from secateur.couple.coupling import Choice, Coupling
from secateur.couple.positions import FollowedNumber
from secateur.couple.rules.registry import dimension, pointwise, rule, unknown
from secateur.couple.units import Axis, fixed_axis


@rule("topk")
def choose(coupling: Coupling, call: OpCall) -> None:
    """The best of an axis, by number: of what is left of it, as long as there are enough. Where it has groups, a token
    may be kept out of all but one of them, so that one has to have enough."""
    x, (values, indices) = call["self"], call.outputs
    d, axes = dimension(call["dim"], len(x.shape)), list(coupling.axes(x))
    ranked = axes[d]
    candidates = _within_a_group(coupling, call, ranked)
    rows = coupling.units.resolve(candidates)
    if len(rows) == 1 and len(np.unique(rows)) == rows.size:
        coupling.choices.append(Choice(call, candidates, call["k"], "its coordinates are ranked"))
        coupling.positions.add(indices, ranked)
    else:
        coupling.pin(call, "its coordinates are ranked", ranked)
    axes[d] = fixed_axis(call["k"])
    for value in (values, indices):
        coupling.set(value, axes, call)


def _within_a_group(coupling: Coupling, call: OpCall, axis: Axis) -> Axis:
    """The first of equal groups that an axis is divided into, all of which stay; the whole axis where it is not."""
    rows = coupling.units.resolve(axis)
    if len(rows) == 2:
        coupling.pin(call, "groups of it are ranked", min(rows, key=lambda row: row[0] != row[1])[None])
        rows = coupling.units.resolve(axis)
    length = len(np.unique(rows))
    alike = len(rows) == 1 and axis.shape[1] % length == 0 and not (rows.reshape(-1, length) != rows[:, :length]).any()
    return axis[:, :length] if alike else axis


@rule("one_hot")
def one_hot(coupling: Coupling, call: OpCall) -> None:
    x, classes = call["self"], coupling.units.fresh(call.out.shape[-1])
    coupling.positions.look_up(call, x, classes, "its values are numbers of classes")
    coupling.set(call.out, [*coupling.axes(x), classes], call)


@rule("histc", "bincount")
def count(coupling: Coupling, call: OpCall) -> None:
    """How often each position occurs, where there is a bin for each of them."""
    x, bins = call["self"], call.out.shape[0]
    less = {"bins": 0, "max": 1} if call.op == "histc" else {"minlength": 0}
    plain = not call["min"] and call["weights"] is None and all(call[name] == bins - n for name, n in less.items())
    if coupling.positions.along(x) is None or not plain:
        return unknown(coupling, call)
    counted = coupling.units.fresh(bins)
    coupling.positions.look_up(call, x, counted, "it is counted by numbers")
    for name, n in less.items():
        coupling.positions.number(call, x, FollowedNumber(name, bins - n, counted, n))
    return coupling.set(call.out, [counted], call)


@rule(MODULE_LOOKUP)
def look_up_module(coupling: Coupling, call: OpCall) -> None:
    position, path = call["0"], call["1"]
    experts = coupling.experts_in(path)
    coupling.positions.look_up(call, position, experts, "a module is looked up by its number")
    if path not in coupling.loops.followed:
        coupling.pin(call, "its modules are used in another way, too", experts)


@rule("eq", "ne", "lt", "le", "gt", "ge")
def compare(coupling: Coupling, call: OpCall) -> None:
    """A position beside a number, which is a position as well: as many of the coordinates before it have to be left."""
    x, number = call["self"], call["other"]
    axis = coupling.positions.along(x)
    if axis is not None and coupling.picked_in_loop(call, axis):
        coupling.positions.used(call, x)
    elif axis is not None and isinstance(number, int) and 0 <= number <= axis.shape[1]:
        coupling.pin(call, "its coordinates are named by numbers", axis[:, number : number + 1])
        coupling.positions.number(call, x, FollowedNumber("other", number, axis[:, :number]))
    pointwise(coupling, call)
