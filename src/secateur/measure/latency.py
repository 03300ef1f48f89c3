"""Latency of several models side by side, on a machine that is never quiet.

The models take turns (forwards, then backwards) in samples of at least a millisecond, on one thread and by its own CPU
time, so that a disturbance hits all of them alike. The statistic is the mean of the lower half of the samples; the
interval of each ratio comes from a bootstrap over the turns. A copy of the baseline runs along as a null control: a
ratio whose interval overlaps the control's says nothing.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from secateur.modes import evaluating

__all__ = ["NULL_CONTROL", "Latency", "compare_latency"]

NULL_CONTROL = "null control"

_SAMPLE_SECONDS = 1e-3
_TARGET_HALF_WIDTH = 0.02
_MIN_ROUNDS, _MAX_ROUNDS, _ROUNDS_BETWEEN_LOOKS = 20, 400, 10
_BOOTSTRAPS = 400


@dataclass(frozen=True)
class Latency:
    """Seconds of one forward pass, and the ratio to the baseline's with its 95 % interval."""

    seconds: float
    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def settled(self) -> bool:
        """Whether the interval became narrow enough for a verdict."""
        return (self.high - self.low) / 2 <= _TARGET_HALF_WIDTH * self.ratio

    def overlaps(self, other: Latency) -> bool:
        return self.low <= other.high and other.low <= self.high


def compare_latency(
    models: Mapping[str, nn.Module], inputs: torch.Tensor, *, max_seconds: float = 30.0
) -> dict[str, Latency]:
    """Times one forward pass of each model on one thread; the first is the baseline, and gets a null control."""
    baseline = next(iter(models))
    contestants = {**models, NULL_CONTROL: copy.deepcopy(models[baseline])}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ExitStack() as modes, torch.inference_mode():
            for model in contestants.values():
                modes.enter_context(evaluating(model))
            repeats = {name: _calls_per_sample(model, inputs) for name, model in contestants.items()}

            def sample(name: str) -> float:
                started = time.thread_time()
                for _ in range(repeats[name]):
                    contestants[name](inputs)
                return (time.thread_time() - started) / repeats[name]

            return _take_turns(sample, list(contestants), max_seconds)
    finally:
        torch.set_num_threads(threads)


def _calls_per_sample(model: nn.Module, inputs: torch.Tensor) -> int:
    for _ in range(3):  # the first calls allocate memory and choose kernels
        model(inputs)
    started = time.thread_time()
    model(inputs)
    return max(1, math.ceil(_SAMPLE_SECONDS / max(time.thread_time() - started, 1e-7)))


def _take_turns(sample: Callable[[str], float], names: list[str], max_seconds: float) -> dict[str, Latency]:
    """Samples all contestants in turn until every interval is narrow or the time is up."""
    samples: dict[str, list[float]] = {name: [] for name in names}
    deadline = time.monotonic() + max_seconds
    for rounds in range(1, _MAX_ROUNDS + 1):
        for name in names if rounds % 2 else reversed(names):
            samples[name].append(sample(name))
        if rounds >= _MIN_ROUNDS and rounds % _ROUNDS_BETWEEN_LOOKS == 0:
            latencies = _summarise({name: np.array(values) for name, values in samples.items()}, names[0])
            if all(latency.settled for latency in latencies.values()) or time.monotonic() > deadline:
                break
    return latencies


def _summarise(samples: Mapping[str, np.ndarray], baseline: str) -> dict[str, Latency]:
    rounds = len(samples[baseline])
    turns = np.random.default_rng(0).integers(0, rounds, (_BOOTSTRAPS, rounds))
    base = _low_half_mean(samples[baseline])
    base_bootstrap = _low_half_mean(samples[baseline][turns])
    latencies = {}
    for name, values in samples.items():
        seconds = _low_half_mean(values)
        low, high = np.quantile(_low_half_mean(values[turns]) / base_bootstrap, [0.025, 0.975])
        latencies[name] = Latency(float(seconds), float(seconds / base), float(low), float(high), rounds)
    return latencies


def _low_half_mean(values: np.ndarray) -> np.ndarray:
    """Robust against preemption, which only ever adds time, and steadier than the minimum."""
    half = max(1, values.shape[-1] // 2)
    return np.asarray(np.sort(values, axis=-1)[..., :half].mean(-1))
