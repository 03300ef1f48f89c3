"""2:4 weights on sparse tensor cores, which the study of the processor cannot measure: what is missing, and what others
saw. `secateur hardware --device cuda` measures them on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from secateur.bench import Timing


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
    """Why it was not measured, or "" where it was."""
    measured: tuple[TwoOfFour, ...] = ()
    """In reports of earlier versions."""


def what_is_missing() -> TensorCores:
    if torch.cuda.is_available():
        return TensorCores("`secateur hardware --device cuda` measures them")
    return TensorCores("there is no CUDA device here")
