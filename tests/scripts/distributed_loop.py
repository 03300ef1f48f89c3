"""Prunes a small network in however many processes torchrun starts, and saves what each process ended with.

torchrun --nproc-per-node 2 distributed_loop.py OUT BATCH [channels] [undecided] [fsdp] [interrupted] [repaired]

"channels" removes channels instead of weights, "undecided" uses a score that differs from process to process, "fsdp"
shards the model, "interrupted" stops the run in its middle and starts it again, and "repaired" repairs after the cut.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader, TensorDataset

import secateur
from secateur.loop.task import accuracy


def data(examples: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(examples, 16, generator=generator)
    return TensorDataset(images, images[:, :4].argmax(1))


def make_accelerator(modes: set[str]) -> Accelerator:
    accelerator = Accelerator(cpu=True)
    if "fsdp" in modes:
        # accelerate offers FSDP on accelerators only; told that it is in force, its code runs on the CPU just as well.
        PartialState().distributed_type = accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, reshard_after_forward=True, state_dict_type="FULL_STATE_DICT", auto_wrap_policy="no_wrap"
        )
    return accelerator


def undecided(name: str, weight: torch.Tensor) -> torch.Tensor:
    return torch.rand(weight.shape, generator=torch.Generator().manual_seed(int(os.environ["RANK"])))


def main(out: Path, batch: int, modes: set[str]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # No batch norm: its statistics depend on how the batch is spread over processes.
    model = nn.Sequential(
        nn.Linear(16, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)
    )
    measured = 0

    def metric(model: nn.Module, loader: Iterable[Any]) -> float:
        nonlocal measured
        measured += 1
        assert isinstance(model, FSDPModule) == ("fsdp" in modes)
        if "interrupted" in modes and measured == 5:
            raise KeyboardInterrupt
        return accuracy(model, loader)

    def prune() -> secateur.Result:
        return secateur.prune(
            model,
            None if "channels" in modes else 0.8,
            channels=0.5 if "channels" in modes else None,
            train_data=DataLoader(data(512, 0), batch, shuffle=True),
            eval_data=DataLoader(data(200, 1), 30),
            metric=metric if modes & {"fsdp", "interrupted"} else accuracy,
            train=2,
            repair=256 if "repaired" in modes else 0,
            finetune=1.5,
            score=undecided if "undecided" in modes else "l1",
            recipe=secateur.Recipe(lr=5e-3, distill=0.2),
            run_dir=out / "run",
            accelerator=accelerator,
            progress=False,
        )

    accelerator = make_accelerator(modes)
    try:
        result = prune()
    except KeyboardInterrupt:
        result = prune()
    rank = accelerator.process_index
    torch.save(result.model.state_dict(), out / f"model-{rank}.pt")
    result.masks.save(out / f"masks-{rank}.safetensors")
    (out / f"metrics-{rank}.txt").write_text(" ".join(repr(record.metric) for record in result.records))
    (out / f"processes-{rank}.txt").write_text(str(accelerator.num_processes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), set(sys.argv[3:]))
