"""Positions: integers that name coordinates, such as the experts that `topk` chose.

When a coordinate goes, those behind it move up, and the code chooses among the rest. That changes nothing as long as
positions are only moved about, ranked, counted or looked up with: whatever they look up loses the same coordinates.
Any other use needs the numbers as they are, and so pins the axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from secateur.capture import OpCall, Value, values_in
from secateur.couple.units import Axis

if TYPE_CHECKING:
    from secateur.couple.coupling import Coupling

# Their first result holds what `self` holds, elsewhere. Positions keep their order in a cut, so sorting is among them.
_MOVE = frozenset(
    """view _unsafe_view reshape _reshape_alias flatten unflatten squeeze unsqueeze permute transpose t expand clone
    contiguous _to_copy to detach alias slice narrow select unbind split split_with_sizes chunk repeat index
    index_select gather sort""".split()
)
_NEED_NO_NUMBERS = frozenset("argsort zeros_like ones_like full_like empty_like new_zeros sym_size".split())


@dataclass(frozen=True, eq=False)
class FollowedNumber:
    """A number that a call was given for positions: it becomes what is left of `axis`, minus `less`."""

    argument: str
    value: int
    axis: Axis
    less: int = 0


class Positions:
    """Which values hold positions along which axis."""

    def __init__(self, coupling: Coupling) -> None:
        self._coupling = coupling
        self._along: dict[int, Axis] = {}
        self._unusable: set[int] = set()
        self._looked_up: set[tuple[int, int]] = set()
        self._chosen: set[int] = set()
        self.numbers: dict[int, list[FollowedNumber]] = {}
        """By call, the numbers that follow a cut."""

    def add(self, value: Value | None, axis: Axis) -> None:
        if value is not None and axis.size:
            self._along[value.index] = axis
            self._chosen.add(value.index)

    def add_unusable(self, value: Value | None, axis: Axis) -> None:
        """Positions of which it is not known how many are chosen in all: whatever uses them pins the axis."""
        self.add(value, axis)
        if value is not None:
            self._unusable.add(value.index)

    def along(self, value: Value) -> Axis | None:
        """The axis that the value holds positions of."""
        return self._along.get(value.index)

    def depends_on_choice(self, value: Value) -> bool:
        """Whether other data may give other values, because positions that the data chose went into them."""
        return value.index in self._chosen

    def look_up(self, call: OpCall, positions: Value, axis: Axis, why: str) -> bool:
        """`axis` is looked up by positions, and so loses the coordinates that they lose; by any other number it stays
        whole. One of the two axes may go on, for example with a coordinate that stands for none of them: that stays."""
        known = self.along(positions)
        if known is None or positions.index in self._unusable:
            self._coupling.pin(call, why, axis)
            return False
        common = min(axis.shape[1], known.shape[1])
        self.used(call, positions)
        self._coupling.tie(call, axis[:, :common], known[:, :common])
        self._coupling.pin(call, why, axis[:, common:], known[:, common:])
        return True

    def used(self, call: OpCall, positions: Value) -> None:
        """The call's own rule has said what its use of positions means."""
        self._looked_up.add((call.index, positions.index))

    def number(self, call: OpCall, positions: Value, number: FollowedNumber) -> None:
        """The call gets a number that follows from how many positions there are."""
        self.used(call, positions)
        self.numbers.setdefault(call.index, []).append(number)

    def follow(self, call: OpCall) -> None:
        """After the rule of the call: where positions go to, and which are used as plain numbers."""
        if not self._chosen:
            return
        if any(value.index in self._chosen for value in call.tensors):
            self._chosen |= {out.index for out in call.outputs if out is not None}
        op = call.op.rstrip("_")
        for name, argument in call.args.items():
            for value in values_in([argument]):
                axis = self.along(value)
                if axis is None or (call.index, value.index) in self._looked_up or op in _NEED_NO_NUMBERS:
                    continue
                if name == "self" and op in _MOVE and value.index not in self._unusable:
                    self._move(call, axis)
                else:
                    self._coupling.pin(call, "its coordinates are named by numbers", axis)

    def _move(self, call: OpCall, axis: Axis) -> None:
        for out in call.outputs[:1] if call.op == "sort" else call.outputs:
            self.add(out, axis)
