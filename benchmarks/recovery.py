"""What fine-tuning makes of a pruned network, from where the cut left it and from where the repair did, with labels and
with the dense model's answers: accuracy on the test images, at equal steps.

    python benchmarks/recovery.py                                # the demo's network, three seeds
    python benchmarks/recovery.py --network vit --seeds 0 --epochs 0.2 1.5
    python benchmarks/recovery.py --choose --network mobile      # learning rates and weights of distillation

Runs train side by side where Ray is installed (the extra `sweep`).

`--choose` is how the defaults of `Recipe` were chosen: each setting is judged on 8,000 training images of the whole set
(Debian's dataset-fashion-mnist) that are not among the 10,000 in the package.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from repair import NETWORKS, trained_with
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import secateur
from secateur.examples import find_folder, load_fashion_mnist
from secateur.studies.pool.side_by_side import side_by_side

CUTS: dict[str, dict[str, Any]] = {
    "50 % of the channels": {"channels": 0.5},
    "90 % zeros": {"amount": 0.9},
    "2:4": {"pattern": "2:4"},
}
LR = 3e-3
STARTS: dict[str, dict[str, Any]] = {
    "cut, labels": {"repair": 0, "recipe": secateur.Recipe(lr=LR, distill=0.0)},
    "cut, default": {"repair": 0, "recipe": secateur.Recipe(lr=LR)},
    "repaired, labels": {"recipe": secateur.Recipe(lr=LR, distill=0.0)},
    "repaired, default": {"recipe": secateur.Recipe(lr=LR)},
    "repaired, no labels": {"recipe": secateur.Recipe(lr=LR, distill=1.0)},
}


def to_choose_from() -> Iterator[tuple[str, dict[str, Any]]]:
    for repair, scale, distill in product((0, 512), (1.0, 0.3, 0.1, 0.03), (0.0, 0.5, 1.0)):
        recipe = secateur.Recipe(lr=LR, finetune_scale=scale, distill=distill)
        yield (
            f"{'repaired' if repair else 'cut'}, lr × {scale:g}, distill {distill:g}",
            {"repair": repair, "recipe": recipe},
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=NETWORKS, default="resnet")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=float, nargs="+", default=[0.2, 1.5], help="of fine-tuning")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--kept", type=Path, default=Path("repair-networks"), help="the folder for dense networks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    train_set, test_set = load_fashion_mnist(find_folder(None))
    judged_on = test_set
    starts = STARTS
    if options.choose:
        judged_on, starts = not_seen(train_set, load_fashion_mnist(find_folder("full"))[0]), dict(to_choose_from())
    dense = trained_with(options.seeds, options.network, options.kept, train_set, test_set)
    for (cut, asked), epochs in product(CUTS.items(), options.epochs):
        print(f"{cut}, {epochs:g} epochs", flush=True)

        def end(run: tuple[str, int], asked: dict[str, Any] = asked, epochs: float = epochs) -> tuple[float, float]:
            start, seed = run
            return recovered(dense[seed], asked, epochs, starts[start], seed, train_set, judged_on)

        runs = {f"{start}, seed {seed}": (start, seed) for start in starts for seed in options.seeds}
        found = dict(side_by_side(end, runs))
        for start in starts:
            ends = [found[f"{start}, seed {seed}"] for seed in options.seeds]
            accuracy, seconds = (mean(column) for column in zip(*ends, strict=True))
            each = ", ".join(f"{100 * end:.1f}" for end, _ in ends)
            print(f"  {start:32}{100 * accuracy:6.2f} % ({each}) in {seconds:.0f} CPU s", flush=True)


def not_seen(train_set: TensorDataset, whole: TensorDataset) -> TensorDataset:
    seen = {image.numpy().tobytes() for image in train_set.tensors[0]}
    others = [i for i, image in enumerate(whole.tensors[0]) if image.numpy().tobytes() not in seen][:8_000]
    return TensorDataset(*(tensor[others] for tensor in whole.tensors))


def recovered(
    dense: nn.Module,
    asked: dict[str, Any],
    epochs: float,
    how: dict[str, Any],
    seed: int,
    train_set: Dataset[Any],
    judged_on: Dataset[Any],
) -> tuple[float, float]:
    started = time.process_time()
    result = secateur.prune(
        dense,
        train_data=DataLoader(train_set, 64, shuffle=True, drop_last=True),
        eval_data=DataLoader(judged_on, 500),
        finetune=epochs,
        seed=seed,
        progress=False,
        **asked,
        **how,
    )
    return result.after, time.process_time() - started


if __name__ == "__main__":
    main()
