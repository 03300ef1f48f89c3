"""Merging, splitting and reshaping axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from secateur.couple.units import Axis, Units, fixed_axis


def concatenate(axes: Sequence[Axis]) -> Axis:
    """One axis after the other."""
    terms = max(len(axis) for axis in axes)
    padded = [np.concatenate([axis, np.zeros((terms - len(axis), axis.shape[1]), np.int64)]) for axis in axes]
    return np.concatenate(padded, axis=1)


def merge(axes: Sequence[Axis]) -> Axis:
    """The row-major product: a coordinate of the merged axis needs one coordinate of each."""
    length = prod(axis.shape[1] for axis in axes)
    rows, outer = [], 1
    for axis in axes:
        inner = length // (outer * axis.shape[1])
        rows += [np.tile(np.repeat(row, inner), outer) for row in axis]
        outer *= axis.shape[1]
    return np.stack(rows) if rows else fixed_axis(length)


def split(units: Units, axis: Axis, sizes: Sequence[int], reason: int) -> list[Axis]:
    """The inverse of `merge`: binds the units of `axis` to conjunctions until it is a product over `sizes`."""
    rows: list[list[Axis]] = [[] for _ in sizes]
    free = units.resolve(axis)
    for i, row in enumerate((*free, *units.examples_in(axis))):
        grid = row.reshape(sizes)
        varies = [d for d, n in enumerate(sizes) if n > 1 and (grid != grid.take([0], axis=d)).any()]
        if len(varies) == 1:
            d = varies[0]
            rows[d].append(np.moveaxis(grid, d, 0).reshape(sizes[d], -1)[:, 0])
        elif i >= len(free):
            continue  # examples are pinned already
        elif not varies:
            units.pin(row[None], reason)
        else:
            parts = [units.fresh(n) if d in varies else fixed_axis(n) for d, n in enumerate(sizes)]
            units.unify(row[None], merge(parts), reason)
            for d in varies:
                rows[d].append(parts[d][0])
    return [np.stack(own) if own else fixed_axis(n) for own, n in zip(rows, sizes, strict=True)]


def split_axis(function: str, ndim: int) -> int:
    """The axis that `hsplit`, `vsplit` or `dsplit` splits: columns are the second, but for a vector."""
    return {"hsplit": min(1, ndim - 1), "vsplit": 0, "dsplit": 2}[function]


def reshape(units: Units, axes: Sequence[Axis], old: Sequence[int], new: Sequence[int], reason: int) -> list[Axis]:
    """The axes of `x.reshape(new)`: runs of old and new sizes with equal products are merged and split."""
    if 0 in old:
        return [fixed_axis(n) for n in new]
    reshaped: list[Axis] = []
    i = j = 0
    while i < len(old) or j < len(new):
        first_old, first_new = i, j
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while (left := prod(old[first_old:i])) != (right := prod(new[first_new:j])):
            if left < right:
                i += 1
            else:
                j += 1
        parts = [axis for axis, n in zip(axes[first_old:i], old[first_old:i], strict=True) if n != 1]
        sizes = new[first_new:j]
        longer = [n for n in sizes if n != 1]
        if not parts:
            reshaped += [fixed_axis(n) for n in sizes]
            continue
        flat = parts[0] if len(parts) == 1 else merge(parts)
        pieces = iter([flat] if len(longer) == 1 else split(units, flat, longer, reason))
        reshaped += [fixed_axis(1) if n == 1 else next(pieces) for n in sizes]
    return reshaped
