"""What a sweep costs beyond its runs: many short runs of a tiny task, side by side and one after another.

    python benchmarks/sweep_overhead.py                # 200 runs, some minutes
    python benchmarks/sweep_overhead.py --runs 40

"own" is what the same runs take as plain calls of `prune`, one after another on one core, with a folder each: half of
them before the sweep and half of them after it, because a machine's speed drifts. The sweep runs as many at a time as
there are cores, on one core each; overhead is how much longer it takes than its runs shared out among the cores without
any loss, with Ray's start and end included, and without timing the models.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import secateur
from secateur.bench.machine import this_machine

VERSIONS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--epochs", type=float, default=8, help="of fine-tuning, in each run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = max(1, options.runs // VERSIONS)
    amounts = [0.5 + 0.4 * i / VERSIONS for i in range(options.runs // seeds)]
    task = tiny_task(options.epochs)
    torch.manual_seed(0)
    model = secateur.train(
        network(), 2, progress=False, **{key: task[key] for key in ("train_data", "eval_data")}
    ).model
    with tempfile.TemporaryDirectory() as folder:

        def seconds_of_plain_runs(wanted: Sequence[tuple[int, float]]) -> float:
            began = time.monotonic()
            for seed, amount in wanted:
                run = Path(folder, f"own-{amount:g}-{seed}")
                secateur.prune(model, amount, seed=seed, run_dir=run, progress=False, **task)
            return time.monotonic() - began

        wanted = list(product(range(seeds), amounts))
        own = seconds_of_plain_runs(wanted[::2])
        began = time.monotonic()
        found = secateur.sweep(
            model,
            amounts,
            seeds=seeds,
            out=Path(folder, "sweep"),
            example_inputs=torch.zeros(1, 16),
            measure=False,
            progress=False,
            cores=1,
            **task,
        )
        swept = time.monotonic() - began
        own += seconds_of_plain_runs(wanted[1::2])
        began = time.monotonic()
        secateur.report(found)
        reported = time.monotonic() - began
    cores = this_machine().cores
    print(f"{len(found.finished)} runs of {own / len(found.runs):.2f} s each, own {own:.1f} s, on {cores} cores")
    print(f"sweep {swept:.1f} s, overhead {swept * cores / own - 1:+.1%}; all pages {reported:.1f} s")


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def tiny_task(epochs: float) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(2048) % 4
    inputs = torch.randn(4, 16, generator=generator)[labels] + torch.randn(2048, 16, generator=generator)
    data = TensorDataset(inputs, labels)
    return {
        "train_data": DataLoader(data, 32, shuffle=True, drop_last=True),
        "eval_data": DataLoader(data, 512),
        "finetune": epochs,
        "repair": 64,
    }


if __name__ == "__main__":
    main()
