"""A sweep of a small trained network that takes a second or two, and what any way of running it must give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader

import secateur
from secateur.checkpoint.manifest import WEIGHTS_FILE
from tests.support.models import blobs, trained_convnet

CUTS = [0.8, secateur.Channels(0.5)]


def small_sweep(out: Path, amounts: Any = CUTS, **options: Any) -> secateur.Sweep:
    quick = {"measure": False, "at_once": 1, "repair": 0, "finetune": 1, "progress": False}
    return secateur.sweep(
        trained_convnet(),
        amounts,
        out=out,
        example_inputs=blobs(2).tensors[0],
        train_data=DataLoader(blobs(), 32, shuffle=True),
        eval_data=DataLoader(blobs(64, seed=1), 32),
        **(quick | options),
    )


def weights_of(found: secateur.Sweep) -> dict[str, dict[str, torch.Tensor]]:
    return {run.name: load_file(found.folder / run.name / WEIGHTS_FILE) for run in found.runs}


def assert_same_weights(found: secateur.Sweep, other: secateur.Sweep) -> None:
    ours, theirs = weights_of(found), weights_of(other)
    assert ours.keys() == theirs.keys()
    for name, tensors in ours.items():
        assert tensors.keys() == theirs[name].keys()
        for key, tensor in tensors.items():
            assert torch.equal(tensor, theirs[name][key]), f"{key} of {name}"
