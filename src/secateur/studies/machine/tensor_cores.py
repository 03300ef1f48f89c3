"""2:4 weights on sparse tensor cores: measured where a GPU has them; elsewhere what is missing, and what others saw.

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
class Published:
    speedup: str
    what: str
    source: str


_TUTORIAL = "https://docs.pytorch.org/tutorials/advanced/semi_structured_sparse.html"
PUBLISHED = (
    Published("2", "the arithmetic alone, by design of the hardware", "https://arxiv.org/abs/2104.08378"),
    Published("1.38", "a 3072 × 10240 weight with 3072 rows, float16, A100", _TUTORIAL),
    Published("1.14–1.23", "BERT-base at batch 16–256, and 0.71 at batch 4; float16, A100", _TUTORIAL),
    Published(
        "1.10",
        "Segment Anything (ViT-h) with 2:4 in its MLPs, bfloat16, A100",
        "https://github.com/pytorch/ao/blob/main/torchao/sparsity/README.md",
    ),
    Published(
        "1.03–1.04",
        "Inception v3 in TensorRT at batch 32–128, and 0.81 at 256; float16, A6000",
        "https://github.com/NVIDIA/TensorRT/issues/2310",
    ),
    Published("0.11", "a 4096 × 4096 weight with a single row", "https://github.com/pytorch/pytorch/issues/111339"),
)
"""By how much others saw 2:4 weights speed things up, from most to least."""


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
