"""`Removal`: what is left of every axis once certain units are gone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secateur.couple.units import Axis, Units


class Removal:
    """The set of dead units, and the coordinates and lengths that follow from it."""

    def __init__(self, units: Units, dead: NDArray[np.int64]) -> None:
        self._units = units
        self._dead = np.zeros(units.count, bool)
        self._dead[dead] = True
        self._alive: dict[int, tuple[Axis, NDArray[np.bool_], int]] = {}

    def alive(self, axis: Axis) -> NDArray[np.bool_]:
        """Which coordinates are left."""
        return self._of(axis)[1]

    def count(self, axis: Axis) -> int:
        return self._of(axis)[2] if len(axis) else axis.shape[1]

    def _of(self, axis: Axis) -> tuple[Axis, NDArray[np.bool_], int]:
        known = self._alive.get(id(axis))
        if known is None:
            resolved = self._units.resolve(axis)
            alive = ~self._dead[resolved[0]] if len(resolved) == 1 else ~np.any(self._dead[resolved], axis=0)
            known = axis, alive, int(np.count_nonzero(alive))  # holding the axis keeps its id taken
            self._alive[id(axis)] = known
        return known
