"""How long each layer takes at any width: measured on a coarse grid, interpolated in between, and kept on disk.

A layer alone takes longer than in its network, where it is fused with its neighbours and the layout of its inputs is
already right. So the sum over all layers is multiplied by one factor: the time of the dense network over its sum.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import astuple
from functools import partial

import numpy as np
import torch

from secateur.base import cache_folder, interruptible, read_json, uninterrupted, write_cache
from secateur.bench import find_runtime, this_machine, time_in_turns, torch_threads
from secateur.channels.costs import Costs, Term
from secateur.channels.target.single_layer import ON_PROCESSOR, Place, lone_layer
from secateur.channels.target.slots import Layer, LayerSlot
from secateur.couple import Shares

_ROUNDS = 9
_SHARES = (0.125, 0.25, 0.5, 1.0)
_ALIGNMENT = 8
_NEXT_TO_NOTHING = Layer("linear", 1, 1, 1, 1)
_LEAST_SHARE = 0.05


class LatencyTable:
    """Seconds of layers in one runtime, with a number of threads, on this machine or its GPU."""

    def __init__(self, runtime: str, threads: int, place: Place = ON_PROCESSOR) -> None:
        self._runtime, self._threads, self._place = runtime, threads, place
        self._seconds: dict[str, float] = {}
        key = f"{this_machine().name} · {runtime} {find_runtime(runtime).version} · {threads} threads{place}"
        self._path = cache_folder() / f"layers-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
        with suppress(OSError, ValueError, AttributeError, TypeError):
            stored = read_json(self._path)
            self._seconds = {str(layer): float(seconds) for layer, seconds in stored["seconds"].items()}
        self._grids: dict[Layer, _Grid] = {}

    def measure(self, slots: Sequence[LayerSlot], begin: Callable[[str], object]) -> None:
        """Times every layer of the slots over its grid of widths, unless it is known already."""
        known = len(self._seconds)
        for dense in self.families(slots):
            begin(str(dense))
            axes = _axes([slot for slot in slots if slot.dense == dense])
            points = [dense.with_widths(widths) for widths in itertools.product(*axes)]
            unknown = [layer for layer in points if _key(layer) not in self._seconds]
            if unknown:
                self._seconds.update(zip(map(_key, unknown), self._time(unknown), strict=True))
            rates = np.array([self._seconds[_key(layer)] / layer.macs for layer in points])
            self._grids[dense] = _Grid(axes, rates.reshape([len(axis) for axis in axes]))
        if len(self._seconds) > known:
            write_cache(self._path, json.dumps({"seconds": self._seconds}))

    @staticmethod
    def families(slots: Sequence[LayerSlot]) -> list[Layer]:
        """The different layers among the slots; blocks of a network repeat most of them."""
        return list(dict.fromkeys(slot.dense for slot in slots))

    def costs(self, slots: Iterable[LayerSlot], factor: float = 1.0) -> Costs:
        return Costs(Term(slot.touched_by, partial(self._seconds_of, slot, factor)) for slot in slots)

    def _seconds_of(self, slot: LayerSlot, factor: float, shares: Shares) -> float:
        widths = slot.at(shares)
        return factor * self._grids[slot.dense].rate(widths) * slot.dense.with_widths(widths).macs

    def _time(self, layers: Sequence[Layer]) -> list[float]:
        """Seconds of each, without those of calling the runtime, which a network pays once and not for every layer."""
        with uninterrupted(patience=1), torch_threads(self._threads), torch.inference_mode():
            calls, clocks = zip(
                *(
                    lone_layer(layer, self._runtime, self._threads, self._place)
                    for layer in (_NEXT_TO_NOTHING, *layers)
                ),
                strict=True,
            )
            numbered = {str(i): call for i, call in enumerate(calls)}
            turns = interruptible(time_in_turns, numbered, clock=clocks[0], min_rounds=_ROUNDS, max_seconds=0)
        calling, *seconds = (timing.seconds for timing in turns.timings.values())
        return [max(own - calling, _LEAST_SHARE * own) for own in seconds]


class _Grid:
    """Seconds per multiply-add at a few widths; in between, straight lines over the logarithm of each width."""

    def __init__(self, axes: Sequence[Sequence[int]], rates: np.ndarray) -> None:
        self._axes, self._rates = axes, rates

    def rate(self, widths: Sequence[int]) -> float:
        value = self._rates
        for axis, width in zip(self._axes, widths, strict=True):
            upper = next((i for i, known in enumerate(axis) if known >= width), len(axis) - 1)
            lower = max(0, upper - 1)
            if axis[upper] == axis[lower] or width <= axis[lower]:
                value = value[lower]
            else:
                way = math.log(min(width, axis[upper]) / axis[lower]) / math.log(axis[upper] / axis[lower])
                value = (1 - way) * value[lower] + way * value[upper]
        return float(value)


def _axes(slots: Sequence[LayerSlot]) -> list[list[int]]:
    """For each width the values to measure at: one where no cut changes it."""
    variable = [any(flags) for flags in zip(*(slot.variable for slot in slots), strict=True)]
    return [
        sorted({_aligned(width, share) for share in _SHARES}) if changes else [width]
        for width, changes in zip(slots[0].dense.widths, variable, strict=True)
    ]


def _aligned(width: int, share: float) -> int:
    if width < 2 * _ALIGNMENT:
        return max(1, round(width * share))
    return min(width, max(_ALIGNMENT, round(width * share / _ALIGNMENT) * _ALIGNMENT)) if share < 1 else width


def _key(layer: Layer) -> str:
    return repr(astuple(layer))
