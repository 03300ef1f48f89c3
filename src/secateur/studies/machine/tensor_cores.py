"""2:4 weights on sparse tensor cores: measured where a GPU has them; elsewhere what is missing.

No GPU has run the measurement yet; it is tested up to the call of the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from secateur.bench import Timer, Timing, cuda_clock

SHAPES = ((4096, 4096, 1), (4096, 4096, 64), (4096, 4096, 4096), (3072, 10240, 3072))
"""Outputs, inputs and rows of the batch: a single row, where 2:4 is said to lose, up to large products."""
FIRST_CAPABILITY = (8, 0)
SECONDS = 2.0


@dataclass(frozen=True)
class TwoOfFour:
    outputs: int
    inputs: int
    batch: int
    timing: Timing
    """Against the dense product in float16."""
    control: Timing


@dataclass(frozen=True)
class TensorCores:
    missing: str
    """What this machine lacks, or "" where it was measured."""
    measured: tuple[TwoOfFour, ...] = ()


def what_is_missing() -> str:
    if not torch.cuda.is_available():
        return "there is no CUDA device here"
    capability = torch.cuda.get_device_capability()
    if capability < FIRST_CAPABILITY:
        major, minor = capability
        return f"{torch.cuda.get_device_name()} has compute capability {major}.{minor}, and they came with 8.0"
    return ""


def time_tensor_cores(timer: Timer) -> TensorCores:
    missing = what_is_missing()
    if missing:
        return TensorCores(missing)
    try:
        return TensorCores("", tuple(_time_two_of_four(*shape, timer) for shape in SHAPES))
    except (RuntimeError, NotImplementedError) as error:  # torch without cuSPARSELt, say, or too little memory
        first_line = str(error).partition("\n")[0]
        return TensorCores(f"torch could not run its 2:4 kernels on {torch.cuda.get_device_name()} ({first_line})")


def _time_two_of_four(outputs: int, inputs: int, batch: int, timer: Timer) -> TwoOfFour:
    x = torch.randn(batch, inputs).half().cuda()
    pattern = torch.tensor([0, 0, 1, 1]).repeat(outputs, inputs // 4)
    dense = (torch.randn(outputs, inputs) * pattern).half().cuda()
    with torch.inference_mode():
        sparse = torch.sparse.to_sparse_semi_structured(dense)
        calls = {"dense": lambda: F.linear(x, dense), "2:4": lambda: F.linear(x, sparse)}
        turns = timer(calls, max_seconds=SECONDS, clock=cuda_clock)
    return TwoOfFour(outputs, inputs, batch, turns["2:4"], turns.control)
