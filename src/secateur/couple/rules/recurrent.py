"""LSTM, GRU and plain RNN, all layers and directions of one module at once."""

from __future__ import annotations

from collections.abc import Sequence

from secateur.capture.trace import Call, Value
from secateur.couple.axes import concatenate
from secateur.couple.coupling import Coupling
from secateur.couple.rules.registry import rule, unknown
from secateur.couple.units import Axis, fixed_axis

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@rule(*_GATES)
def recurrent(coupling: Coupling, call: Call) -> None:
    """A hidden unit owns one row in every gate, and goes from all of them; all layers share the state's width."""
    x, weights, layers = call["input"], call["params"], call["num_layers"]
    states = call["hx"] if isinstance(call["hx"], list) else [call["hx"]]
    directions = 2 if call["bidirectional"] else 1
    per_cell = 4 if call["has_biases"] else 2
    if len(weights) != per_cell * layers * directions:  # an LSTM with projections
        return unknown(coupling, call)
    *outer, below = coupling.axes(x)
    for layer in range(layers):
        hidden = []
        for direction in range(directions):
            first = (layer * directions + direction) * per_cell
            hidden.append(_cell(coupling, call, weights[first : first + per_cell], below, outer))
        for state in states:
            for axis in hidden:
                coupling.tie(call, coupling.axes(state)[-1], axis)
        below = hidden[0] if directions == 1 else concatenate(hidden)
    for state in states:
        coupling.pin(call, coupling.axes(state)[0], "it counts the layers")
    out, *last_states = call.outputs
    coupling.set(out, [*outer, below], call)
    for value in last_states:
        if value is not None:
            *leading, _ = value.shape
            coupling.set(value, [*(fixed_axis(n) for n in leading), coupling.axes(states[0])[-1]], call)
    return None


def _cell(coupling: Coupling, call: Call, weights: Sequence[Value], below: Axis, outer: Sequence[Axis]) -> Axis:
    """Couples the weights of one layer in one direction; returns its hidden axis."""
    from_below, from_hidden = weights[:2]
    hidden, gates = coupling.axes(from_hidden)[1], _GATES[call.op]
    coupling.tie(call, coupling.axes(from_below)[1], below)
    coupling.read(coupling.CONTRACTED, below)
    coupling.read(coupling.CONTRACTED, hidden)
    for value in weights[:2]:
        coupling.contract(value, 1)
        coupling.count_macs(call, [*outer, *coupling.axes(value)])
    for value in weights:
        rows = coupling.axes(value)[0]
        if gates > 1:
            gate, rows = coupling.split(call, rows, (gates, hidden.shape[1]))
            coupling.pin(call, gate, "every gate is needed")
        coupling.tie(call, rows, hidden)
    return hidden
