"""Fewer channels: one layer cut on its output side, its input side and both; layers of many counts; whole networks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateur.base import copy_of_model, evaluating
from secateur.bench import CountCurve, Timer, Timing, count_macs, find_runtime
from secateur.channels import SlowCounts, plan_channels
from secateur.studies.machine.probes import bind, chain, example_input
from secateur.surgery import apply

SIDES = {"output side": (1.0, 0.5), "input side": (0.5, 1.0), "both sides": (0.5, 0.5)}
"""The shares of inputs and outputs that stay."""
COUNTS = (*range(32, 49), *range(60, 81), 96, 112, *range(120, 137), 144, 160)
DEPTH = 3
"""Layers in a row: a runtime may reorder its data once before and once after them, as in a network."""
LAYER_SECONDS, COUNTS_SECONDS, NETWORK_SECONDS = 2.0, 3.0, 3.0


@dataclass(frozen=True)
class LayerCut:
    """A layer of so many channels on both sides, and what half of one side or of both takes of its time."""

    kind: str
    runtime: str
    width: int
    timings: dict[str, Timing]
    """By the keys of SIDES."""
    control: Timing


@dataclass(frozen=True)
class NetworkCut:
    """A whole network with fewer channels, against itself with all of them."""

    network: str
    runtime: str
    version: str
    kept: float
    """The share of channels that was asked for."""
    macs_ratio: float
    timing: Timing
    control: Timing


@dataclass(frozen=True)
class Network:
    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]


def time_layer_cuts(kind: str, runtime: str, width: int, timer: Timer) -> LayerCut:
    torch.manual_seed(0)
    calls = {"whole": bind(chain(kind, [width, width]), example_input(kind, width), runtime)}
    for side, (inputs, outputs) in SIDES.items():
        widths = [round(inputs * width), round(outputs * width)]
        calls[side] = bind(chain(kind, widths), example_input(kind, widths[0]), runtime)
    with torch.inference_mode():
        turns = timer(calls, max_seconds=LAYER_SECONDS)
    return LayerCut(kind, runtime, width, {side: turns[side] for side in SIDES}, turns.control)


def time_counts(kind: str, runtime: str, timer: Timer, counts: Sequence[int] = COUNTS) -> CountCurve:
    torch.manual_seed(0)
    calls = {
        str(count): bind(chain(kind, [count] * (DEPTH + 1)), example_input(kind, count), runtime) for count in counts
    }
    with torch.inference_mode():
        turns = timer(calls, max_seconds=COUNTS_SECONDS)
    return CountCurve(kind, runtime, tuple(counts), tuple(turns.timings.values()), turns.control)


def cut_network(network: Network, versions: Mapping[str, tuple[float, int]]) -> dict[str, nn.Module]:
    """The dense network first, then a copy for each version: its share of channels kept, as multiples of a number."""
    torch.manual_seed(0)
    dense, inputs = network.build().eval(), network.inputs()
    models = {"dense": dense}
    for name, (kept, multiple_of) in versions.items():
        model = copy_of_model(dense)
        with warnings.catch_warnings(action="ignore", category=SlowCounts):  # that is what is to be shown
            models[name] = apply(model, plan_channels(model, inputs, 1 - kept, multiple_of=multiple_of))
    return models


def time_networks(
    network: Network, models: Mapping[str, nn.Module], kept: Mapping[str, float], runtime: str, timer: Timer
) -> tuple[NetworkCut, ...]:
    inputs = network.inputs()
    macs = {name: count_macs(model, inputs) for name, model in models.items()}
    chosen = find_runtime(runtime)
    with torch.inference_mode(), ExitStack() as modes:
        for model in models.values():
            modes.enter_context(evaluating(model))
        calls = {name: chosen.load(model, inputs, 1).bind(inputs) for name, model in models.items()}
        turns = timer(calls, max_seconds=NETWORK_SECONDS)
    return tuple(
        NetworkCut(network.name, runtime, name, kept[name], macs[name] / macs["dense"], turns[name], turns.control)
        for name in models
        if name != "dense"
    )
