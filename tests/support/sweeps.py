"""Made-up sweeps for the tests of their page."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from secateur.bench.comparison import Comparison
from secateur.bench.machine import Machine
from secateur.bench.sheet import Footprint, Measurement, Sheet
from secateur.bench.size import ModelSize
from secateur.bench.timing import Timing
from secateur.loop.result import History, Record
from secateur.studies.sweep.swept import DENSE_RUN, Sweep, SweptRun

MACHINE = Machine("CPU A", 8, "AVX2", "performance", 0.1, "no GPU", "Linux 6", "3.12", "2.9")
ANOTHER_MACHINE = replace(MACHINE, cpu="CPU B")
SIZE = ModelSize(10_000_000, 10_000_000, 40_000_000)
DENSE_RECORD = Record("before", "before", 0, 0.93, 0.0, SIZE, 1.0, 10_000)

_AT_A_TIME = 8
"""Runs on a sheet."""


def swept_run(version: str, seed: int, kept: float, accuracy: float) -> SweptRun:
    """Of which a share of the channels is left."""
    size = ModelSize(*(int(kept * count) for count in (SIZE.parameters, SIZE.nonzeros, SIZE.file_bytes)))
    last = replace(DENSE_RECORD, stop="epoch 3", phase="fine-tune", epochs=3.0, metric=accuracy, size=size)
    history = History((DENSE_RECORD, last), 0.01)
    return SweptRun(f"{version}-seed-{seed}", version, seed, history, size.file_bytes, int(kept * 5e8))


def sheet_of(runs: Sequence[SweptRun], machine: Machine = MACHINE, seconds: float = 10e-3) -> Sheet:
    """The dense model takes `seconds`, and a run the share of them that it has of the parameters."""
    ratios = {DENSE_RUN: 1.0} | {run.name: run.file_bytes / SIZE.file_bytes for run in runs}
    timings = {
        name: Timing(seconds * ratio, ratio, 0.98 * ratio, 1.03 * ratio, 40, seconds * ratio, seconds * ratio)
        for name, ratio in ratios.items()
    }
    footprints = {name: Footprint(SIZE, int(ratio * 5e8), "float32") for name, ratio in ratios.items()}
    comparison = Comparison(timings, timings[DENSE_RUN], DENSE_RUN, "onnxruntime", "float32", 1, machine)
    peaks: Mapping[str, Any] = dict.fromkeys(ratios, 10.0)
    return Sheet(DENSE_RUN, footprints, (Measurement(1, comparison, peaks),), (), machine)


def made_up_sweep(folder: Path, versions: int = 6, seeds: int = 3) -> Sweep:
    """Complete, and measured on one machine. What keeps less is worth less, and every other version some more so."""
    chance = random.Random(0)
    runs = []
    for i in range(versions):
        kept = 0.15 + 0.8 * i / max(1, versions - 1)
        expected = 0.93 - 0.09 * (1 - kept) ** 2 - 0.02 * (i % 2)
        runs += [swept_run(f"channels={kept:.4g}", seed, kept, chance.gauss(expected, 0.004)) for seed in range(seeds)]
    sheets = tuple(sheet_of(runs[i : i + _AT_A_TIME]) for i in range(0, len(runs), _AT_A_TIME))
    return Sweep("accuracy", DENSE_RECORD, tuple(runs), sheets, folder=folder)


def with_failures(found: Sweep, *sentences: str) -> Sweep:
    """The last runs have failed, or, without a sentence, were not run."""
    kept = len(found.runs) - len(sentences)
    lost = [
        SweptRun(run.name, run.version, run.seed, failure=sentence)
        for run, sentence in zip(found.runs[kept:], sentences, strict=True)
    ]
    return replace(found, runs=(*found.runs[:kept], *lost))
