"""Latency of several models side by side, with a null control.

The control is a copy of the baseline that runs along: a ratio whose interval overlaps the control's says nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from secateur.measure.timing import Timing, compare
from secateur.modes import evaluating

__all__ = ["NULL_CONTROL", "compare_latency"]

NULL_CONTROL = "null control"


def compare_latency(models: Mapping[str, nn.Module], inputs: Tensor, *, max_seconds: float = 30.0) -> dict[str, Timing]:
    """Times one forward pass of each model, on one thread; the first is the baseline, and gets the null control."""
    contestants = {**models, NULL_CONTROL: copy.deepcopy(next(iter(models.values())))}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ExitStack() as modes, torch.inference_mode():
            for model in contestants.values():
                modes.enter_context(evaluating(model))
            calls = {name: lambda model=model: model(inputs) for name, model in contestants.items()}
            return compare(calls, max_seconds=max_seconds)
    finally:
        torch.set_num_threads(threads)
