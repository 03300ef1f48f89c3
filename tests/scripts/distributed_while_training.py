"""Prunes gradually in two processes, with DDP and then with FSDP, while a plain loop trains.

    torchrun --nproc-per-node 2 distributed_while_training.py

Fails if the processes disagree on a mask, if a pruned weight moves, or if channels are not refused.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import secateur
from tests.scripts.distributed_hold import make_model, step


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for shards in (False, True):
        torch.manual_seed(0)
        model: nn.Module = make_model()
        if shards:
            fully_shard(model)
        else:
            model = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.1)
        require_refusal(model, optimizer)
        torch.manual_seed(dist.get_rank())  # each process would choose other weights
        undecided = secateur.Zeros(0.8, score="random")
        with secateur.prune_while_training(model, optimizer, undecided, steps=20, schedule="gradual") as pruning:
            for _ in range(20):
                step(model, optimizer)
        require_zeros(model if shards else model.module, pruning.masks)
    dist.barrier()
    dist.destroy_process_group()
    print("pruned alike", flush=True)
    os._exit(0)  # all is checked, and gloo's threads now and then keep an interpreter from ending by itself


def require_refusal(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    refused = ""
    try:
        secateur.prune_while_training(
            model, optimizer, secateur.Channels(0.5), steps=20, start=0.5, example_inputs=torch.zeros(1, 16)
        )
    except secateur.UsageError as error:
        refused = str(error)
    assert "while several processes train the model" in refused


def require_zeros(model: nn.Module, masks: secateur.Masks | None) -> None:
    assert masks is not None
    everyones: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, {name: layer.bits.tobytes() for name, layer in masks.layers.items()})
    assert everyones[0] == everyones[1], "the processes disagree on the masks"
    assert masks.zeros == round(0.8 * masks.weights)
    for name, layer in masks.layers.items():
        weight = model.get_parameter(name)
        whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
        assert (whole[layer.pruned()] == 0).all(), f"a pruned weight of {name} moved"


if __name__ == "__main__":
    main()
