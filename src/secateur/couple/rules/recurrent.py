"""LSTM, GRU and plain RNN, all layers and directions of one module at once."""

from __future__ import annotations

from collections.abc import Sequence

from secateur.capture import OpCall, Value
from secateur.couple.axes import concatenate
from secateur.couple.coupling import Coupling
from secateur.couple.rules.registry import rule
from secateur.couple.units import Axis, fixed_axis

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@rule(*_GATES)
def recurrent(coupling: Coupling, call: OpCall) -> None:
    """A hidden unit owns one row in every gate, and goes from all of them; all layers share the state's width."""
    x, weights = call["input"], call["params"]
    states = call["hx"] if isinstance(call["hx"], list) else [call["hx"]]
    directions = 2 if call["bidirectional"] else 1
    cells = call["num_layers"] * directions
    per_cell = len(weights) // cells
    *outer, below = coupling.axes(x)
    for layer in range(call["num_layers"]):
        outputs = []
        for direction in range(directions):
            first = (layer * directions + direction) * per_cell
            output, inner = _cell(coupling, call, weights[first : first + per_cell], below, outer)
            for state, axis in zip(states, (output, inner), strict=False):
                coupling.tie(call, coupling.axes(state)[-1], axis)
            outputs.append(output)
        below = outputs[0] if directions == 1 else concatenate(outputs)
    out, *last_states = call.outputs
    coupling.set(out, [*outer, below], call)
    batch = [] if len(outer) == 1 else [outer[0 if call["batch_first"] else 1]]
    for value, state in zip(last_states, states, strict=True):
        if value is not None:
            coupling.set(value, [fixed_axis(cells), *batch, coupling.axes(state)[-1]], call)


def _cell(
    coupling: Coupling, call: OpCall, weights: Sequence[Value], below: Axis, outer: Sequence[Axis]
) -> tuple[Axis, Axis]:
    """Couples the weights of one layer in one direction; returns its output axis and the axis of its inner state,
    which are the same unless the layer projects its output."""
    from_below, from_output, *rest = weights
    projection = rest.pop() if len(rest) % 2 else None
    output, gates = coupling.axes(from_output)[1], _GATES[call.op]
    inner = output if projection is None else coupling.axes(projection)[1]
    coupling.tie(call, coupling.axes(from_below)[1], below)
    for axis in (below, output, inner):
        coupling.read(axis)
    if projection is not None:
        coupling.tie(call, coupling.axes(projection)[0], output)
    for value in (from_below, from_output, projection):
        if value is not None:
            coupling.contract(value, 1)
            coupling.count_macs(call, [*outer, *coupling.axes(value)])
    for value in (from_below, from_output, *rest):
        rows = coupling.axes(value)[0]
        if gates > 1:
            gate, rows = coupling.split(call, rows, (gates, inner.shape[1]))
            coupling.pin(call, "every gate is needed", gate)
        coupling.tie(call, rows, inner)
    return output, inner
