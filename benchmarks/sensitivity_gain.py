"""Which layers, what ratio? Amounts by sensitivity beside the same ratio everywhere, at the same latency.

    python benchmarks/sensitivity_gain.py                          three seeds, about half an hour on one core
    python benchmarks/sensitivity_gain.py --seeds 1 --ratios 0.25  one of them, with a quarter of the channels removed

The demo's network is trained on 8,000 images of its Fashion-MNIST subset; its sensitivity is measured on 2,000 others,
once right after each cut ("at once") and once after a quarter of an epoch of fine-tuning ("recovered"). "uniform" loses
the same share of every group. "search" loses what costs the least for the latency that it saves
(`plan_channels(target=…, sensitivity=…)`), down to what "uniform" was measured at. All are fine-tuned alike, for 15 %
of the epochs, with three orders of the data each, and judged by their mean on the 5,000 test images. Latencies are of
all versions in turn in one run, with a 95 % interval.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections import defaultdict
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, random_split

import secateur
from secateur.bench.machine import this_machine
from secateur.channels.sensitivity_curves import Sensitivity
from secateur.examples.fashion_mnist import load_fashion_mnist
from secateur.examples.small_resnet import SmallResNet
from secateur.loop.task import accuracy
from secateur.studies.group_study import sensitivity
from secateur.studies.pool.side_by_side import side_by_side

BATCH = 32
AMOUNTS = (0.25, 0.5, 0.625, 0.75, 0.875)
RECOVERY = 0.25
ORDERS = 3
RECIPE = secateur.Recipe(lr=3e-3)
FINETUNE = secateur.Recipe(lr=3e-3)
SHARE = 0.15
VERSIONS = ("uniform", "search, at once", "search, recovered")

Gains = defaultdict[tuple[float, str], list[tuple[float, float]]]


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)
    print(f"eager, one thread, batch {BATCH}; {this_machine()}\n")
    print(f"{'seed':<5}{'removed':<9}{'':<20}{'× dense':<20}{'MACs':>5}{'right after':>13}{'recovered':>11}")
    gains: Gains = defaultdict(list)
    for seed in range(options.seeds):
        run(seed, options.ratios, options.epochs, gains)
    print("\npoints of accuracy against uniform, means over the seeds with the least and the most")
    for (ratio, name), pairs in gains.items():
        right_after, recovered = (spread([100 * gain for gain in column]) for column in zip(*pairs, strict=True))
        print(f"{ratio:<9.0%}{name:<20}right after {right_after:<25}recovered {recovered}")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare amounts by sensitivity with a uniform ratio.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.25, 0.5, 0.65])
    parser.add_argument("--epochs", type=float, default=10)
    return parser.parse_args()


def run(seed: int, ratios: list[float], epochs: float, gains: Gains) -> None:
    train_set, test_set = load_fashion_mnist()
    fitted, held_out = random_split(train_set, [8000, 2000], torch.Generator().manual_seed(seed))
    train_data, held_out_data = DataLoader(fitted, 64, shuffle=True, drop_last=True), DataLoader(held_out, 500)
    data = {"train_data": train_data, "eval_data": DataLoader(test_set, 500)}
    torch.manual_seed(seed)
    dense = secateur.train(SmallResNet(), epochs, recipe=RECIPE, seed=seed, progress=False, **data)
    print(f"{seed:<5}{'':<9}{'dense':<20}{'1':<20}{'1':>5}{'':>13}{dense.after:>11.4f}", flush=True)
    images = torch.stack([test_set[i][0] for i in range(BATCH)])
    options = {"amounts": AMOUNTS, "progress": False}
    at_once = sensitivity(dense.model, images, held_out_data, **options)
    options |= {"finetune": RECOVERY, "train_data": train_data, "recipe": RECIPE}
    recovered = sensitivity(dense.model, images, held_out_data, **options)
    macs = secateur.inspect(dense.model, images).macs
    for ratio in ratios:
        models = versions(dense.model, images, ratio, at_once, recovered)
        latencies = secateur.compare({"dense": dense.model, **models}, images)

        def tune(run: tuple[str, int], models: dict[str, nn.Module] = models) -> float:
            name, order = run
            own = {"recipe": FINETUNE, "seed": order, "progress": False}
            return secateur.train(models[name], SHARE * epochs, **own, **data).after

        runs = {f"{name}, order {order}": (name, order) for name in models for order in range(ORDERS)}
        found = dict(side_by_side(tune, runs))
        seen = {}
        for name, model in models.items():
            tuned = [found[f"{name}, order {order}"] for order in range(ORDERS)]
            seen[name] = accuracy(model.eval(), data["eval_data"]), statistics.mean(tuned)
            left = secateur.inspect(model, images).macs / macs
            print(f"{'':<5}{ratio:<9.0%}{name:<20}{latencies[name]!s:<20}{left:>5.2f}", end="")
            print(f"{seen[name][0]:>13.4f}{seen[name][1]:>11.4f}", flush=True)
        print(f"{'':<14}{'null':<20}{latencies.control!s:<20}")
        for name in VERSIONS[1:]:
            gains[ratio, name].append((seen[name][0] - seen["uniform"][0], seen[name][1] - seen["uniform"][1]))


def versions(
    model: nn.Module, images: torch.Tensor, ratio: float, at_once: Sensitivity, recovered: Sensitivity
) -> dict[str, nn.Module]:
    def cut(**options: Any) -> nn.Module:
        return secateur.apply(copy.deepcopy(model), secateur.plan_channels(model, images, **options))

    uniform = cut(amount=ratio)
    goal = secateur.compare({"dense": model, "uniform": uniform}, images)["uniform"].ratio
    # A target is met within 5 %; what ends above the goal would win by being slower.
    searches = [cut(target=f"latency={0.97 * goal:.3f}", sensitivity=found) for found in (at_once, recovered)]
    return dict(zip(VERSIONS, (uniform, *searches), strict=True))


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):+.2f} ({min(values):+.2f} to {max(values):+.2f})"


if __name__ == "__main__":
    main()
