"""Where the time of a product with a CSR weight goes, found by taking one source of work away at a time.

Five products over the same numbers of rows and entries are timed in turn, each with something more to do than the one
before it; the difference is what that something costs:

1. a CSR weight without entries: the call itself, and writing the output;
2. the dense product of as many multiply-adds: plus multiplying, as fast as dense kernels can;
3. a CSR weight whose entries all lie in the first columns: plus decoding an index for every entry, and all that a
   kernel loses that cannot lay out its work in advance; what it multiplies with stays in the nearest cache;
4. the CSR weight with its entries anywhere: plus gathering rows of the input from all over it;
5. the same product with the batch first in the input and in the output: through `F.linear`, which hands that layout to
   the kernel; or by transposing both by hand around the fourth.

Decoding an index and using it cannot be told apart further without another kernel: they are one part.

The parts are differences of measurements, not readings of a counter. Noise can make one negative: it is then shown as
nothing, and the parts add up to a little more than the whole.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from secateur.bench import BoundCall, Timer, Timing

PARTS = {
    "call and output": "calling the kernel and writing the output",
    "multiply": "multiplying, as fast as a dense kernel does",
    "index decode": "reading an index for every entry, and working entry by entry",
    "gather": "fetching input rows from all over",
    "layout": "the same product with the batch first, as F.linear has it",
    "transposes": "turning the input and the output around by hand",
}
SECONDS = 4.0


@dataclass(frozen=True)
class Bar:
    """One way to compute the product, split up."""

    name: str
    seconds: float
    parts: dict[str, float]
    """Seconds by the keys of PARTS; the dense products have one part only."""


@dataclass(frozen=True)
class Ablation:
    size: int
    batch: int
    sparsity: float
    timings: dict[str, Timing]
    control: Timing

    @property
    def bars(self) -> tuple[Bar, ...]:
        return bars_of({name: timing.seconds for name, timing in self.timings.items()})

    @property
    def largest_part(self) -> str:
        """Of `F.linear` with a CSR weight."""
        parts = next(bar.parts for bar in self.bars if bar.name == "CSR, F.linear")
        return max(parts, key=lambda name: parts[name])


def bars_of(seconds: dict[str, float]) -> tuple[Bar, ...]:
    """Differences along the chain in the module's text, none below zero."""
    chain = {
        "call and output": seconds["no entries"],
        "multiply": seconds["as many dense"] - seconds["no entries"],
        "index decode": seconds["first columns"] - seconds["as many dense"],
        "gather": seconds["CSR, W @ X"] - seconds["first columns"],
    }
    layout = {"layout": seconds["CSR, F.linear"] - seconds["CSR, W @ X"]}
    transposes = {"transposes": seconds["CSR, transposed"] - seconds["CSR, W @ X"]}
    splits = {
        "dense, F.linear": {"multiply": seconds["dense, F.linear"]},
        "CSR, W @ X": chain,
        "CSR, transposed": chain | transposes,
        "CSR, F.linear": chain | layout,
    }
    return tuple(
        Bar(name, seconds[name], {part: max(0.0, value) for part, value in parts.items()})
        for name, parts in splits.items()
    )


def time_ablation(size: int, batch: int, sparsity: float, timer: Timer) -> Ablation:
    generator = torch.Generator().manual_seed(0)
    kept = max(1, round((1 - sparsity) * size))  # in every row
    x = torch.randn(batch, size, generator=generator)
    x_last = x.t().contiguous()
    dense = torch.randn(size, size, generator=generator)
    values = torch.randn(size, kept, generator=generator)
    anywhere = torch.stack([torch.randperm(size, generator=generator)[:kept].sort().values for _ in range(size)])
    csr, first_columns = (_csr(values, columns, size) for columns in (anywhere, torch.arange(kept).repeat(size, 1)))
    empty = _csr(values[:, :0], anywhere[:, :0], size)
    few_rows = x_last[:kept].contiguous()
    calls: dict[str, BoundCall] = {
        "dense, F.linear": lambda: F.linear(x, dense),
        "no entries": lambda: empty @ x_last,
        "as many dense": lambda: values @ few_rows,
        "first columns": lambda: first_columns @ x_last,
        "CSR, W @ X": lambda: csr @ x_last,
        "CSR, F.linear": lambda: F.linear(x, csr),
        "CSR, transposed": lambda: (csr @ x.t().contiguous()).t().contiguous(),
    }
    with torch.no_grad():
        turns = timer(calls, max_seconds=SECONDS)
    return Ablation(size, batch, sparsity, dict(turns.timings), turns.control)


def _csr(values: Tensor, columns: Tensor, size: int) -> Tensor:
    rows, kept = values.shape
    starts = torch.arange(rows + 1) * kept
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its sparse formats a beta state
        return torch.sparse_csr_tensor(starts, columns.flatten(), values.flatten(), (rows, size))
