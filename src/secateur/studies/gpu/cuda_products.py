"""One product, a batch times a weight, in every form that a pruned weight can take on a GPU, against dense.

Whatever fails is told in a sentence, and the rest is timed: a kernel that torch lacks, a shape or type that it does not
take, too little memory, an old card. An error that CUDA does not recover from ends the process: `stopped_by` tells what
raised it, so that it can be left out next time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from secateur.base import in_brief
from secateur.bench import BoundCall, Timer, Timing, allowed_difference
from secateur.studies.gpu.cuda_device import Gpu

DENSE, TIMING, UNKNOWN = "dense", "timing", "unknown"
CSR = "CSR"
BLOCKS: dict[str, int] = {f"BSR {block}×{block}": block for block in (16, 32, 64)}
TWO_OF_FOUR: dict[str, str] = {"2:4, cuSPARSELt": "cusparselt", "2:4, CUTLASS": "cutlass"}
NARROWER: str = "30 % narrower"
HALF: str = "half as wide"
ON_GRID, OFF_GRID = "half - 8", "half + 8"
WIDTHS: dict[str, Callable[[int], int]] = {
    NARROWER: lambda size: round(0.7 * size / 8) * 8,
    HALF: lambda size: size // 2,
    ON_GRID: lambda size: size // 2 - 8,
    OFF_GRID: lambda size: size // 2 + 8,
}
"""Of both sides of a dense weight. A kernel works in tiles: eight more than a whole number of them takes one more."""
GPU_FORMATS = (CSR, *BLOCKS, *TWO_OF_FOUR, *WIDTHS)
FIRST_CAPABILITY = (8, 0)
"""Of sparse tensor cores."""
SLOWEST = 0.05
"""The share of a product's seconds that one call may take; a slower one would leave no rounds for the others."""


@dataclass(frozen=True)
class Case:
    """What to measure, as plain data."""

    size: int
    """Of the square weight."""
    sparsity: float
    """Of CSR and BSR."""
    dtype: str
    batch: int
    seconds: float
    """To stop after, even if an interval is still wide."""
    left_out: Mapping[str, str]
    """Formats that are not tried, and why."""


@dataclass(frozen=True)
class Product:
    """Times as ratios to the dense product, and why what is missing is missing."""

    dtype: str
    batch: int
    timings: dict[str, Timing]
    """By format, the dense one first; empty where that failed."""
    control: Timing | None
    refused: dict[str, str]
    """By format."""
    gpu: str
    clocks: str
    """After measuring, when it is warm."""


@dataclass(frozen=True)
class Answer:
    product: Product
    stopped_by: str = ""
    """The format after which the GPU did nothing any more, or TIMING."""


def time_product(case: Case, gpu: Gpu, timer: Timer) -> Answer:
    refused = dict(case.left_out)
    timings: dict[str, Timing] = {}
    control = None
    with torch.no_grad(), warnings.catch_warnings():  # under inference_mode F.linear does not take a CSR weight
        warnings.simplefilter("ignore")  # torch calls its sparse formats a beta state or a prototype
        calls, stopped_by = _calls(case, gpu, refused)
        if calls and not stopped_by:
            try:
                turns = timer(calls, max_seconds=case.seconds, clock=gpu.clock)
                timings, control = dict(turns.timings), turns.control
            except Exception as error:
                refused |= {
                    name: f"it ran alone, but not in turn with the others ({in_brief(error)})" for name in calls
                }
    calls.clear()
    gpu.free()
    if not (stopped_by or gpu.works()):
        stopped_by = TIMING
    return Answer(Product(case.dtype, case.batch, timings, control, refused, gpu.name, gpu.clocks()), stopped_by)


def _calls(case: Case, gpu: Gpu, refused: dict[str, str]) -> tuple[dict[str, BoundCall], str]:
    """Those that run; why the others do not is added to `refused`. And the format that stopped the GPU, if one did."""
    calls: dict[str, BoundCall] = {}
    for name in (DENSE, *GPU_FORMATS):
        if name in refused:
            continue
        if DENSE in refused:
            refused[name] = "the dense product does not run, so there is nothing to compare it with"
            continue
        found = _tried(name, case, gpu)
        if not isinstance(found, str):
            calls[name] = found
            continue
        refused[name] = found
        gpu.free()  # not before: an error holds what the failed call had made for as long as it is handled
        if name != DENSE and not gpu.works():
            return calls, name
    return calls, ""


def _tried(name: str, case: Case, gpu: Gpu) -> BoundCall | str:
    """A call that runs, computes what it should and is quick enough; or why there is none."""
    if name in TWO_OF_FOUR and gpu.capability < FIRST_CAPABILITY:
        major, minor = gpu.capability
        return f"sparse tensor cores came with compute capability 8.0, and this GPU has {major}.{minor}"
    try:
        call, expected = _made(name, case, gpu)
        off = _difference(call(), expected())
        seconds = gpu.clock(call, 1)
    except torch.OutOfMemoryError:
        return "it does not fit in the GPU's memory"
    except NotImplementedError as error:
        return f"torch has no kernel for it here ({in_brief(error)})"
    except Exception as error:  # kernels and the compilers behind them raise anything at all
        return f"it does not run here ({in_brief(error)})"
    if not off <= allowed_difference(case.dtype):
        return f"it computes something else: off by {100 * off:.0f} % of the largest number"
    if name != DENSE and seconds > SLOWEST * case.seconds:
        return f"one call takes {seconds:.1f} s, too long to take turns"
    return call


def _difference(found: Tensor, expected: Tensor) -> float:
    """Relative to the largest number."""
    expected = expected.float()
    return float((found.float() - expected).abs().max() / expected.abs().max())


def _made(name: str, case: Case, gpu: Gpu) -> tuple[BoundCall, BoundCall]:
    """The product in this format, and the dense product that it should equal."""
    size = WIDTHS[name](case.size) if name in WIDTHS else case.size
    # In float32 first: torch draws no random numbers in every type, and a seed gives each batch the same weights.
    generator = torch.Generator(gpu.device).manual_seed(0)
    x, dense = (
        torch.randn(rows, size, generator=generator, device=gpu.device).to(getattr(torch, case.dtype))
        for rows in (case.batch, size)
    )
    if name in TWO_OF_FOUR:
        dense *= torch.tensor([0, 0, 1, 1], device=gpu.device).repeat(size // 4)
    elif name == CSR or name in BLOCKS:
        block = BLOCKS.get(name, 1)
        kept = _kept(size // block, case.sparsity, generator)
        dense *= kept.repeat_interleave(block, 0).repeat_interleave(block, 1)
    weight = dense
    if name in TWO_OF_FOUR:
        weight = gpu.two_of_four(dense, TWO_OF_FOUR[name])
    elif name == CSR:
        weight = dense.to_sparse_csr()
    elif name in BLOCKS:
        weight = dense.to_sparse_bsr((BLOCKS[name], BLOCKS[name]))
    return partial(gpu.linear, x, weight), partial(gpu.linear, x, dense)


def _kept(blocks: int, sparsity: float, generator: torch.Generator) -> Tensor:
    """True in exactly the share that stays, at least once."""
    kept = max(1, round((1 - sparsity) * blocks * blocks))
    order = torch.randperm(blocks * blocks, generator=generator, device=generator.device)
    return (order < kept).view(blocks, blocks)
