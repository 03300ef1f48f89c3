"""Least squares for weights of which only some entries are free, row by row and exactly."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from secateur.refit.moments import Moments

RIDGES = (1e-9, 1e-4, 1e-2)
"""How strongly weights are held where they are, in units of the mean square of what is read. The first is for layers
whose outputs the kept inputs give exactly."""
_JUDGED_ROWS = 16
"""Of weights with a pattern, where each row is a system of its own."""
_AT_ONCE = 1 << 23
"""Numbers in the systems that are solved together."""


@dataclass(frozen=True)
class Fit:
    weights: Tensor
    """(groups, outputs, inputs)."""
    before: float
    """The error on held-back positions, in units of the spread of what is wanted."""
    after: float


def fit(fitted: Moments, held_back: Moments, start: Tensor, free: Tensor | None) -> Fit:
    """The ridge that does best on what is held back, then the solution on all of it.

    `start` holds the weights so far, `free` is True where they may change; None where all may.
    """
    some = slice(None) if free is None else torch.arange(start.shape[1])[:: -(-start.shape[1] // _JUDGED_ROWS)]
    judge, begin, allowed = held_back.rows(some), start[:, some], None if free is None else free[:, some]
    errors = {ridge: judge.error(solve(fitted.rows(some), begin, allowed, ridge)) for ridge in RIDGES}
    ridge = min(errors, key=errors.__getitem__)
    weights = solve(fitted + held_back, start, free, ridge)
    scale = judge.spread or 1.0
    return Fit(weights, sqrt(judge.error(begin) / scale), sqrt(errors[ridge] / scale))


def solve(moments: Moments, start: Tensor, free: Tensor | None, ridge: float) -> Tensor:
    """For each row the w that minimises |wanted - w read|² + ridge |w - start|² over its free entries."""
    gram, cross = _with_ridge(moments, start, ridge)
    if free is None:
        return _solved(gram, cross.transpose(1, 2)).transpose(1, 2)
    solution = torch.zeros_like(start)
    for group in range(len(start)):
        _solve_rows(gram[group], cross[group], free[group], solution[group])
    return solution


def _with_ridge(moments: Moments, start: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    diagonal = moments.gram.diagonal(dim1=1, dim2=2)
    hold = ridge * diagonal.mean(1).clamp_min(torch.finfo(torch.float64).tiny)[:, None, None]
    eye = torch.eye(start.shape[2], dtype=start.dtype, device=start.device)
    return moments.gram + hold * eye, moments.cross + hold * start


def _solve_rows(gram: Tensor, cross: Tensor, free: Tensor, solution: Tensor) -> None:
    """Rows with the same free entries share a system; the others are solved many at once."""
    patterns, pattern_of_row, members = torch.unique(free, dim=0, return_inverse=True, return_counts=True)
    for pattern in (members > 1).nonzero().flatten().tolist():
        rows, at = (pattern_of_row == pattern).nonzero().flatten(), patterns[pattern].nonzero().flatten()
        if len(at):
            solution[rows[:, None], at] = _solved(gram[at][:, at][None], cross[rows][:, at].T[None])[0].T
    sizes = free.sum(1)
    single = ((members[pattern_of_row] == 1) & (sizes > 0)).nonzero().flatten()
    single = single[sizes[single].argsort(descending=True)]
    while len(single):
        largest = int(sizes[single[0]])
        rows, single = single.tensor_split([max(1, _AT_ONCE // largest**2)])
        solution[rows] = _solve_single(gram, cross[rows], free[rows])


def _solve_single(gram: Tensor, cross: Tensor, free: Tensor) -> Tensor:
    """One system for each row. Rows with fewer free entries than others are filled up with equations x = 0."""
    most = int(free.sum(1).max())
    at = free.int().argsort(dim=1, descending=True, stable=True)[:, :most]
    real = free.gather(1, at)
    systems = gram[at[:, :, None], at[:, None, :]] * (real[:, :, None] & real[:, None, :])
    systems.diagonal(dim1=1, dim2=2).add_((~real).to(systems.dtype))
    found = _solved(systems, (cross.gather(1, at) * real)[..., None])[..., 0]
    return torch.zeros_like(cross).scatter_(1, at, found * real)


def _solved(systems: Tensor, right: Tensor) -> Tensor:
    """Where rounding leaves a system that is not positive, a little is added to its diagonal."""
    factor, failed = torch.linalg.cholesky_ex(systems)
    more = 1e-12
    while failed.any():
        if not systems.isfinite().all():
            return torch.full_like(right, torch.nan)
        scale = systems.diagonal(dim1=1, dim2=2).mean(1).clamp_min(torch.finfo(systems.dtype).tiny)
        eye = torch.eye(systems.shape[-1], dtype=systems.dtype, device=systems.device)
        factor, failed = torch.linalg.cholesky_ex(systems + more * scale[:, None, None] * eye)
        more *= 100
    return torch.cholesky_solve(right, factor)
