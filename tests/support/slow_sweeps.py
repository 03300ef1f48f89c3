"""A sweep that is slow enough to be disturbed: it waits between batches, without using a processor.

As a program, it runs on a Ray cluster: `python -m tests.support.slow_sweeps ADDRESS FOLDER`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import secateur
from secateur.studies.pool import ray_pool
from tests.support.models import blobs, trained_convnet

EPOCHS = 4
CUTS = [0.5, 0.8, secateur.Channels(0.5), secateur.Target("macs=0.6")]
SEEDS = 2


def slow_loss(model: nn.Module, batch: Any) -> Tensor:
    time.sleep(0.02)
    images, labels = batch
    noisy = images + 0.1 * torch.randn_like(images)
    return nn.functional.cross_entropy(model(noisy), labels)


def slow_sweep(out: Path, **options: Any) -> secateur.Sweep:
    torch.set_num_threads(1)
    return secateur.sweep(
        trained_convnet(),
        CUTS,
        seeds=SEEDS,
        out=out,
        example_inputs=blobs(2).tensors[0],
        train_data=DataLoader(blobs(), 16, shuffle=True),
        eval_data=DataLoader(blobs(64, seed=1), 32),
        loss=slow_loss,
        finetune=EPOCHS,
        recipe=secateur.Recipe(lr=3e-3, distill=0.3),
        measure=False,
        cores=1,
        **options,
    )


if __name__ == "__main__":
    import ray

    # Two nodes of one machine share the folder that Ray unpacks a project in, and one that leaves takes it away.
    with ray_pool._on_loopback():
        ray.init(address=sys.argv[1], _node_ip_address="127.0.0.1", log_to_driver=False)
    slow_sweep(Path(sys.argv[2]))
