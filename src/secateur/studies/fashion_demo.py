"""`secateur demo`: trains the reference CNN, prunes the same weights in several ways, and compares what came out."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from secateur.base import working, write_text
from secateur.bench import Timing, compare, count_macs
from secateur.examples import SmallResNet, load_fashion_mnist
from secateur.loop import Recipe, Result, make_display, prune, train

__all__ = ["Demo", "Version", "run_demo"]

SHARE = "15%"
BATCH = 64
LATENCY_BATCH = 32
RECIPE = Recipe(lr=3e-3)
PARTS = ("dense", "zeros-90", "two-of-four", "channels-50")


@dataclass(frozen=True)
class Version:
    """One row of the demo's table."""

    name: str
    result: Result
    file_bytes: int
    macs: int
    latency: Timing


@dataclass(frozen=True)
class Demo:
    """The dense model first, then its pruned versions, and the null control of the timing."""

    versions: tuple[Version, ...]
    control: Timing
    epochs: float
    seed: int
    train_images: int
    test_images: int

    def to_json(self) -> dict[str, Any]:
        return {
            "epochs": self.epochs,
            "finetune": SHARE,
            "seed": self.seed,
            "train_images": self.train_images,
            "test_images": self.test_images,
            "latency_batch": LATENCY_BATCH,
            "latency_null_control": _latency_json(self.control),
            "versions": [
                {
                    "name": version.name,
                    "accuracy_before": version.result.before,
                    "accuracy_right_after": version.result.right_after,
                    "accuracy_recovered": version.result.after,
                    "parameters": version.result.size_after.parameters,
                    "nonzeros": version.result.size_after.nonzeros,
                    "file_bytes": version.file_bytes,
                    "macs": version.macs,
                    "latency": _latency_json(version.latency),
                }
                for version in self.versions
            ],
        }


def run_demo(out: Path, data: Path, epochs: float, seed: int) -> Demo:
    """Goes on where an interrupted demo in `out` stopped; a finished one there is made anew."""
    train_set, test_set = load_fashion_mnist(data)
    if (out / "demo.json").exists():
        for part in PARTS:
            shutil.rmtree(out / part, ignore_errors=True)
        (out / "demo.json").unlink()
    loaders: dict[str, Any] = {
        "train_data": DataLoader(train_set, BATCH, shuffle=True, drop_last=True),
        "eval_data": DataLoader(test_set, 500),
    }
    settings: dict[str, Any] = {**loaders, "recipe": RECIPE, "seed": seed}
    torch.manual_seed(seed)
    untrained = SmallResNet()

    dense = train(untrained, epochs, run_dir=out / PARTS[0], progress=make_display(True, "dense"), **settings)
    pruning: dict[str, Any] = {**settings, "finetune": SHARE, "original_epochs": epochs}
    zeros = prune(dense.model, 0.9, run_dir=out / PARTS[1], progress=make_display(True, "90 % zeros"), **pruning)
    # The stem has one input channel and the pattern needs four.
    two_of_four = prune(
        dense.model,
        pattern="2:4",
        keep=["stem"],
        run_dir=out / PARTS[2],
        progress=make_display(True, "2:4 pattern"),
        **pruning,
    )

    channels = prune(
        dense.model,
        channels=0.5,
        run_dir=out / PARTS[3],
        progress=make_display(True, "50 % channels"),
        **pruning,
    )

    results = {"dense": dense, "90 % zeros": zeros, "2:4 pattern": two_of_four, "50 % channels": channels}
    images = torch.stack([test_set[i][0] for i in range(LATENCY_BATCH)])
    with working("timing the versions in turn"):
        latencies = compare({name: result.model for name, result in results.items()}, images)
    versions = tuple(
        Version(
            name,
            result,
            file_bytes=(out / part / "model.safetensors").stat().st_size,
            macs=count_macs(result.model, images[:1]),
            latency=latencies[name],
        )
        for part, (name, result) in zip(PARTS, results.items(), strict=True)
    )
    demo = Demo(versions, latencies.control, epochs, seed, len(train_set), len(test_set))
    write_text(out / "demo.json", json.dumps(demo.to_json(), indent=2))
    return demo


def _latency_json(latency: Timing) -> dict[str, float]:
    return {
        "seconds": latency.seconds,
        "ratio_to_dense": latency.ratio,
        "ratio_low": latency.low,
        "ratio_high": latency.high,
        "rounds": latency.rounds,
    }
