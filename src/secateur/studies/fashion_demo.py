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
from secateur.bench import Sheet, Timing, measure
from secateur.examples import SmallResNet, load_fashion_mnist
from secateur.loop import Display, Recipe, Result, prune, train

SHARE = "15%"
BATCH = 64
LATENCY_BATCH = 32
RECIPE = Recipe(lr=3e-3)
FOLDERS = {"dense": "dense", "90 % zeros": "zeros-90", "2:4 pattern": "two-of-four", "50 % channels": "channels-50"}
CUTS: dict[str, dict[str, Any]] = {
    "90 % zeros": {"amount": 0.9},
    "2:4 pattern": {"pattern": "2:4"},
    "50 % channels": {"channels": 0.5},
}


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
    """The dense model first, then its pruned versions, and the sheet that they were measured on."""

    versions: tuple[Version, ...]
    sheet: Sheet
    """By the names of the folders."""
    epochs: float
    seed: int
    train_images: int
    test_images: int

    @property
    def control(self) -> Timing:
        return self.sheet.measurements[0].comparison.control

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
                    "accuracy_repaired": version.result.repaired,
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
        for folder in FOLDERS.values():
            shutil.rmtree(out / folder, ignore_errors=True)
        (out / "demo.json").unlink()

    def settings(name: str) -> dict[str, Any]:
        return {
            "train_data": DataLoader(train_set, BATCH, shuffle=True, drop_last=True),
            "eval_data": DataLoader(test_set, 500),
            "recipe": RECIPE,
            "seed": seed,
            "run_dir": out / FOLDERS[name],
            "progress": Display(name),
        }

    torch.manual_seed(seed)
    dense = train(SmallResNet(), epochs, **settings("dense"))
    results = {"dense": dense} | {
        name: prune(dense.model, finetune=SHARE, original_epochs=epochs, **cut, **settings(name))
        for name, cut in CUTS.items()
    }
    images = torch.stack([test_set[i][0] for i in range(LATENCY_BATCH)])
    models = {FOLDERS[name]: result.model for name, result in results.items()}
    with working("timing the versions in turn"):
        sheet = measure(models, images, batches=[LATENCY_BATCH], max_seconds=30, progress=False)
    versions = tuple(
        Version(
            name,
            result,
            file_bytes=(out / FOLDERS[name] / "model.safetensors").stat().st_size,
            macs=sheet.footprints[FOLDERS[name]].macs,
            latency=sheet.measurements[0].comparison[FOLDERS[name]],
        )
        for name, result in results.items()
    )
    demo = Demo(versions, sheet, epochs, seed, len(train_set), len(test_set))
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
