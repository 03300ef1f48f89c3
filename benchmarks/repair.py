"""What repair gives back, on four kinds of networks trained on the demo's images: accuracy right after the cut, and
repaired on 512 unlabelled training images, on the test images.

    python benchmarks/repair.py                              # the demo's network, three seeds
    python benchmarks/repair.py --network vit --seeds 0

Dense networks are trained once, as the demo does, and kept in a folder. Run it on one thread of a quiet machine for the
seconds; the accuracies do not depend on that.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

import secateur
from secateur.examples import Encoder, MobileNetV2, SmallResNet, find_folder, load_fashion_mnist
from secateur.studies.pool.side_by_side import side_by_side

EXAMPLES = 512
EPOCHS = 10
CUTS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    **{
        f"{share:.0%} of the channels": lambda model, image, share=share: secateur.plan_channels(model, image, share)
        for share in (0.25, 0.5, 0.65)
    },
    **{
        f"{share:.0%} zeros, global": lambda model, image, share=share: secateur.plan_weights(model, share)
        for share in (0.8, 0.9, 0.95)
    },
    "90% zeros, each layer": lambda model, image: secateur.plan_weights(model, 0.9, scope="layer"),
    "2:4": lambda model, image: secateur.plan_weights(model, pattern="2:4"),
}


class Mobile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = MobileNetV2((8, 16, 24, 32, 48, 64, 96), (1, 1, 2, 2, 1, 1, 1), classes=10)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(nn.functional.interpolate(x, scale_factor=2).expand(-1, 3, -1, -1))  # type: ignore[no-any-return]


class ViT(nn.Module):
    """Sixteen patches of 7×7."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 7, stride=7)
        self.places = nn.Parameter(torch.zeros(1, 16, width))
        self.encoder = Encoder(width, heads=4, hidden=2 * width, depth=3)
        self.classifier = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.classifier(self.encoder(tokens).mean(1))  # type: ignore[no-any-return]


class Lstm(nn.Module):
    """Reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.LSTM(28, 96, num_layers=2, batch_first=True)
        self.classifier = nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.rows(x.squeeze(1))[0][:, -1])  # type: ignore[no-any-return]


NETWORKS: dict[str, type[nn.Module]] = {"resnet": SmallResNet, "mobile": Mobile, "vit": ViT, "lstm": Lstm}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=NETWORKS, default="resnet")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kept", type=Path, default=Path("repair-networks"), help="the folder for dense networks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    train_set, test_set = load_fashion_mnist(find_folder(None))
    test = list(DataLoader(test_set, 500))
    images = [images for images, _ in DataLoader(Subset(train_set, range(EXAMPLES)), 128)]
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for seed, dense in trained_with(options.seeds, options.network, options.kept, train_set, test_set).items():
        print(f"seed {seed}: dense {accuracy(dense, test):.2f} %", flush=True)
        for name, plan_of in CUTS.items():
            rows.setdefault(name, []).append(row := cut_and_repair(dense, plan_of, images, test))
            print(f"  {name:22} {row[0]:6.2f} → {row[1]:6.2f} % in {row[2]:.1f} CPU s", flush=True)
    print(f"mean of {len(options.seeds)} seeds, right after → repaired:")
    for name, found in rows.items():
        after, repaired, seconds = (mean(column) for column in zip(*found, strict=True))
        print(f"  {name:22} {after:6.2f} → {repaired:6.2f} % in {seconds:.1f} CPU s")


def cut_and_repair(
    dense: nn.Module, plan_of: Callable[[nn.Module, Tensor], Any], images: list[Tensor], test: list[Any]
) -> tuple[float, float, float]:
    plan = plan_of(dense, images[0][:1])
    plain = accuracy(secateur.apply(deepcopy(dense), plan), test)
    model, started = deepcopy(dense), time.process_time()
    secateur.repair(model, plan, images, progress=False)
    return plain, accuracy(model, test), time.process_time() - started


def trained_with(seeds: Sequence[int], network: str, kept: Path, train_set: Any, test_set: Any) -> dict[int, nn.Module]:
    """The dense networks, by seed, trained side by side where Ray is installed."""

    def train(seed: int) -> nn.Module:
        return trained(NETWORKS[network], seed, kept.absolute() / f"{network}-{seed}", train_set, test_set)

    found = dict(side_by_side(train, {str(seed): seed for seed in seeds}))
    return {seed: found[str(seed)] for seed in seeds}


def trained(network: type[nn.Module], seed: int, folder: Path, train_set: Any, test_set: Any) -> nn.Module:
    torch.manual_seed(seed)
    return secateur.train(
        network(),
        EPOCHS,
        train_data=DataLoader(train_set, 64, shuffle=True, drop_last=True),
        eval_data=DataLoader(test_set, 500),
        recipe=secateur.Recipe(lr=3e-3),
        seed=seed,
        run_dir=folder,
    ).model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, test: list[Any]) -> float:
    right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in test)
    return 100 * right / sum(len(labels) for _, labels in test)


if __name__ == "__main__":
    main()
