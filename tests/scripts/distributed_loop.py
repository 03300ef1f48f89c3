"""Prunes a small network in however many processes torchrun starts, and saves what each process ended with.

torchrun --nproc-per-node 2 distributed_loop.py OUT BATCH [undecided]

With "undecided", the score differs from process to process.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import secateur


def data(examples: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(examples, 16, generator=generator)
    return TensorDataset(images, images[:, :4].argmax(1))


def undecided(name: str, weight: torch.Tensor) -> torch.Tensor:
    return torch.rand(weight.shape, generator=torch.Generator().manual_seed(int(os.environ["RANK"])))


def main(out: Path, batch: int, score: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # No batch norm: its statistics depend on how the batch is spread over processes.
    model = nn.Sequential(
        nn.Linear(16, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)
    )
    accelerator = Accelerator(cpu=True)
    result = secateur.prune(
        model,
        0.8,
        train_data=DataLoader(data(512, 0), batch, shuffle=True),
        eval_data=DataLoader(data(200, 1), 30),
        train=2,
        finetune=1.5,
        score=score,
        recipe=secateur.Recipe(lr=5e-3),
        run_dir=out / "run",
        accelerator=accelerator,
        progress=False,
    )
    rank = accelerator.process_index
    torch.save(result.model.state_dict(), out / f"model-{rank}.pt")
    result.masks.save(out / f"masks-{rank}.safetensors")
    (out / f"metrics-{rank}.txt").write_text(" ".join(repr(record.metric) for record in result.records))
    (out / f"processes-{rank}.txt").write_text(str(accelerator.num_processes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), undecided if "undecided" in sys.argv else "l1")
