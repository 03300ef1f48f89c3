"""Sums over calibration examples from which a weight is fitted, and from which its error can be told without them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.refit.processes import Processes

_ROUNDING = 1e-12
"""Of a difference between sums in float64, by their size."""


@dataclass
class Moments:
    """Of what a call reads, with a constant 1 behind it where there is a bias, and of what it should give.

    Products are made in the precision of the data, float32 at least, and added up in float64.
    """

    gram: Tensor
    """(groups, inputs, inputs): what is read, times itself."""
    cross: Tensor
    """(groups, outputs, inputs): what should be given, times what is read."""
    squares: Tensor
    """(groups, outputs): what should be given, squared."""
    totals: Tensor
    """(groups, outputs): what should be given."""
    count: int = 0
    """Positions."""

    @staticmethod
    def empty(weights: Tensor) -> Moments:
        """For weights of (groups, outputs, inputs), in float64."""
        groups, outputs, inputs = weights.shape
        zeros = weights.new_zeros
        return Moments(
            zeros(groups, inputs, inputs),
            zeros(groups, outputs, inputs),
            zeros(groups, outputs),
            zeros(groups, outputs),
        )

    def add(self, read: Tensor, wanted: Tensor) -> None:
        """`read` is (groups, positions, inputs), `wanted` (groups, positions, outputs)."""
        precision = torch.promote_types(torch.promote_types(read.dtype, wanted.dtype), torch.float32)
        read, wanted = read.to(precision), wanted.to(precision)
        self.gram += read.transpose(1, 2) @ read
        self.cross += wanted.transpose(1, 2) @ read
        wide = wanted.double()
        self.squares += wide.square().sum(1)
        self.totals += wide.sum(1)
        self.count += read.shape[1]

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.gram + other.gram,
            self.cross + other.cross,
            self.squares + other.squares,
            self.totals + other.totals,
            self.count + other.count,
        )

    def over(self, processes: Processes) -> Moments:
        """Those of all processes together."""
        if processes.count == 1:
            return self
        count = self.squares.new_tensor([self.count])
        gram, cross, squares, totals = (each.clone() for each in (self.gram, self.cross, self.squares, self.totals))
        processes.sum([gram, cross, squares, totals, count])
        return Moments(gram, cross, squares, totals, int(count))

    def rows(self, some: slice | Tensor) -> Moments:
        """Those of some outputs."""
        return Moments(self.gram, self.cross[:, some], self.squares[:, some], self.totals[:, some], self.count)

    def error(self, weights: Tensor) -> float:
        """The sum of squares by which `weights` of (groups, outputs, inputs) miss what should be given."""
        missed = ((weights @ self.gram - 2 * self.cross) * weights).sum()
        return max(0.0, float(self.squares.sum() + missed))

    @property
    def spread(self) -> float:
        """The sum of squares around the mean of what should be given; 0 where rounding alone would make it."""
        around = float((self.squares - self.totals.square() / max(1, self.count)).sum())
        return around if around > _ROUNDING * float(self.squares.sum()) else 0.0
