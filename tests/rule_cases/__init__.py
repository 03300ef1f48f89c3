"""Models around one operator each, by the file of its rule; `CASES` has them all."""

from __future__ import annotations

from . import (
    attention,
    choosing,
    convolution,
    elementwise,
    indexing,
    matmul,
    norm,
    overlooked_sizes,
    pooling,
    recurrent,
    reduction,
    shape,
    staying_axes,
)
from .registry import CASES, Case

__all__ = [
    "CASES",
    "Case",
    "attention",
    "choosing",
    "convolution",
    "elementwise",
    "indexing",
    "matmul",
    "norm",
    "overlooked_sizes",
    "pooling",
    "recurrent",
    "reduction",
    "shape",
    "staying_axes",
]
