"""`Removal`: what is left of every axis once certain units are gone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secateur.couple.coupling import Contraction
from secateur.couple.units import Axis, Units

__all__ = ["Removal"]


class Removal:
    """The set of dead units, and the coordinates and lengths that follow from it."""

    def __init__(self, units: Units, dead: NDArray[np.int64]) -> None:
        self._units = units
        self._dead = np.zeros(units.count, bool)
        self._dead[dead] = True
        self._alive: dict[int, tuple[Axis, NDArray[np.bool_]]] = {}

    def alive(self, axis: Axis) -> NDArray[np.bool_]:
        if id(axis) not in self._alive:
            dead: NDArray[np.bool_] = np.any(self._dead[self._units.resolve(axis)], axis=0)
            self._alive[id(axis)] = axis, ~dead  # holding the axis keeps its id taken
        return self._alive[id(axis)][1]

    def count(self, axis: Axis) -> int:
        return int(self.alive(axis).sum()) if len(axis) else axis.shape[1]

    def macs(self, contraction: Contraction) -> int:
        total = contraction.factor
        for axis in contraction.axes:
            total *= self.count(axis)
        return total
