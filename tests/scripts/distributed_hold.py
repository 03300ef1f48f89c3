"""Trains a pruned network for 200 steps in two processes, with DDP or FSDP, without secateur's own loop.

    torchrun --nproc-per-node 2 distributed_hold.py ddp|fsdp

Fails if a pruned weight moves, if the processes disagree on a mask, or if sharding changes the masks.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import secateur


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    # 33 rows do not divide by two processes: the shards are uneven.
    return nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 32), nn.ReLU(), nn.Linear(32, 4))


def main(mode: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model: nn.Module = make_model()
    expected = secateur.plan_weights(model, 0.8)
    if mode == "ddp":
        if dist.get_rank() == 1:
            nn.init.normal_(model[0].weight)  # DDP overwrites this with rank 0's weights
        model = DistributedDataParallel(model)
    else:
        fully_shard(model[0])
        fully_shard(model)  # holds the other layers itself, and leaves them gathered after a forward pass
        assert isinstance(next(model.parameters()), DTensor)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.1)
    step(model, optimizer)  # moments from before the cut
    evaluate(model)
    masks = secateur.plan_weights(model, 0.8)
    everyones: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, {name: layer.bits.tobytes() for name, layer in masks.layers.items()})
    assert everyones[0] == everyones[1], "the processes disagree on the masks"
    assert {name: layer.shape for name, layer in masks.layers.items()} == {
        name: layer.shape for name, layer in expected.layers.items()
    }
    assert masks.zeros == expected.zeros

    evaluate(model)
    secateur.hold(model, masks, optimizer)
    for _ in range(200):
        step(model, optimizer)
    parameters = dict((model.module if mode == "ddp" else model).named_parameters())
    for name, layer in masks.layers.items():
        weight = parameters[name]
        whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
        assert (whole[layer.pruned()] == 0).all(), f"a pruned weight of {name} moved"
        assert (whole[~layer.pruned()] != 0).all(), f"{name} lost weights that were not pruned"
    dist.barrier()
    dist.destroy_process_group()
    print("zeros stayed zero", flush=True)
    os._exit(0)  # all is checked, and gloo's threads now and then keep an interpreter from ending by itself


def evaluate(model: nn.Module) -> None:
    with torch.no_grad():
        model(torch.randn(8, 16))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    inputs = torch.randn(8, 16)
    nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1)).backward()
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1])
