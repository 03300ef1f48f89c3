"""2:4 weights on sparse tensor cores, which the study of the processor cannot measure: what is missing.
`secateur hardware --device cuda` measures them on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from secateur.bench import Timing


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
