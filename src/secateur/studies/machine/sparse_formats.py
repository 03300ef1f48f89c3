"""Zeros anywhere in a weight (unstructured sparsity), in torch's standard formats and in secateur's, against dense.

Two layouts of the same product are told apart, each against a dense product in the same layout. `F.linear(X, W)` is
what a linear layer calls: the batch comes first. `W @ X` wants it last, so that all numbers an entry of W is multiplied
with lie side by side.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from secateur.base import SecateurError
from secateur.bench import BoundCall, Timer, Timing
from secateur.sparse import SparseLinear

SPARSITIES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99)
BLOCK = 16
BATCH_FIRST = "CSR, F.linear"
KERNELS = "secateur's kernels"
"""As the sparse engine calls them: through a layer, with the batch first."""
KERNELS_IN_FOURS = "secateur's, 4×1"
IN_BLOCKS = {"BSR, block zeros": "BSR, W @ X", KERNELS_IN_FOURS: KERNELS}
"""With zeros in whole blocks, which suits the format better, and the same format with zeros anywhere."""
FORMATS = (BATCH_FIRST, "CSR, W @ X", "COO, W @ X", "BSR, W @ X", "BSR, block zeros", KERNELS, KERNELS_IN_FOURS)
SECONDS = 0.4


@dataclass(frozen=True)
class SparsityPoint:
    sparsity: float
    timing: Timing
    control: Timing

    @property
    def faster(self) -> bool:
        return self.timing.is_faster(self.control)

    @property
    def slower(self) -> bool:
        return self.timing.is_slower(self.control)


@dataclass(frozen=True)
class FormatCurve:
    """One format at one size: its time as a ratio to dense, over the share of zeros."""

    format: str
    size: int
    """Of the square weight."""
    batch: int
    points: tuple[SparsityPoint, ...]

    @property
    def break_even(self) -> float | None:
        return break_even([point.sparsity for point in self.points], [point.timing.ratio for point in self.points])

    def at(self, sparsity: float) -> SparsityPoint | None:
        return next((point for point in self.points if point.sparsity == sparsity), None)


def break_even(sparsities: Sequence[float], ratios: Sequence[float]) -> float | None:
    """The share of zeros from which on the sparse product is faster, interpolated; None if it never is.

    The lowest share that was measured means "there already, or below".
    """
    if not ratios or ratios[-1] >= 1:
        return None
    for i in reversed(range(len(ratios) - 1)):
        if ratios[i] >= 1:
            way = (ratios[i] - 1) / (ratios[i] - ratios[i + 1])
            return sparsities[i] + way * (sparsities[i + 1] - sparsities[i])
    return sparsities[0]


def refused_formats() -> dict[str, str]:
    """Those that cannot be multiplied with here, and why: torch lacks some of its own without MKL."""
    refused = {}
    for calls in _calls(2 * BLOCK, 1, 0.5, torch.Generator().manual_seed(0)):
        for name, call in calls.items():
            try:
                with torch.no_grad():
                    call()
            except SecateurError as error:
                refused[name] = str(error)
            except (RuntimeError, NotImplementedError) as error:
                refused[name] = f"torch cannot compute it here: {str(error).partition(chr(10))[0]}"
    return refused


def time_formats(
    size: int, batch: int, timer: Timer, sparsities: Sequence[float] = SPARSITIES, formats: Sequence[str] = FORMATS
) -> tuple[FormatCurve, ...]:
    generator = torch.Generator().manual_seed(0)
    points: dict[str, list[SparsityPoint]] = {name: [] for name in formats}
    for sparsity in sparsities:
        for calls in _calls(size, batch, sparsity, generator):
            wanted = {name: call for name, call in calls.items() if name == "dense" or name in formats}
            with torch.no_grad():  # under inference_mode F.linear does not take a CSR weight
                turns = timer(wanted, max_seconds=SECONDS)
            for name in wanted.keys() - {"dense"}:
                points[name].append(SparsityPoint(sparsity, turns[name], turns.control))
    return tuple(FormatCurve(name, size, batch, tuple(points[name])) for name in formats)


def _calls(
    size: int, batch: int, sparsity: float, generator: torch.Generator
) -> tuple[dict[str, BoundCall], dict[str, BoundCall]]:
    """The products with the batch first, and those with the batch last; each time the dense one comes first."""
    x = torch.randn(batch, size, generator=generator)
    x_last = x.t().contiguous()
    dense = torch.randn(size, size, generator=generator)
    scattered = dense * _keep(size, size, sparsity, generator)
    blocks = _keep(size // BLOCK, size // BLOCK, sparsity, generator)
    in_blocks = dense * blocks.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    in_fours = dense * _keep(size // 4, size, sparsity, generator).repeat_interleave(4, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its sparse formats a beta state
        weights = {
            "CSR, W @ X": scattered.to_sparse_csr(),
            "COO, W @ X": scattered.to_sparse_coo().coalesce(),
            "BSR, W @ X": scattered.to_sparse_bsr((BLOCK, BLOCK)),
            "BSR, block zeros": in_blocks.to_sparse_bsr((BLOCK, BLOCK)),
        }
    csr = weights["CSR, W @ X"]
    scattered_layer = SparseLinear.pack(scattered, None, one_example=batch == 1)
    block_layer = SparseLinear.pack(in_fours, None, block=4, one_example=batch == 1)
    first: dict[str, BoundCall] = {
        "dense": lambda: F.linear(x, dense),
        BATCH_FIRST: lambda: F.linear(x, csr),
        KERNELS: lambda: scattered_layer(x),
        KERNELS_IN_FOURS: lambda: block_layer(x),
    }
    last: dict[str, BoundCall] = {"dense": lambda: dense @ x_last}
    last |= {name: partial(torch.matmul, weight, x_last) for name, weight in weights.items()}
    return first, last


def _keep(rows: int, columns: int, sparsity: float, generator: torch.Generator) -> Tensor:
    """True at exactly the share that stays, at least once."""
    kept = max(1, round((1 - sparsity) * rows * columns))
    mask = torch.zeros(rows * columns, dtype=torch.bool)
    mask[torch.randperm(rows * columns, generator=generator)[:kept]] = True
    return mask.view(rows, columns)
