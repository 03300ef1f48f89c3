"""Small scenes for object detectors: clothes of Fashion-MNIST, scattered over dark images, and where each is."""

from __future__ import annotations

import torch
from torch import Tensor

from secateur.examples.fashion_mnist import CLASSES, load_fashion_mnist

SHOWN = ("trouser", "bag", "ankle boot")
"""Labelled 1, 2 and 3: detectors call the background 0."""
_CELLS, _CELL, _GARMENT = 2, 32, 28

Scene = tuple[Tensor, dict[str, Tensor]]


def load_scenes(train: int = 400, test: int = 100) -> tuple[list[Scene], list[Scene]]:
    """Images of shape [3, 64, 64] with values from 0 to 1, each with the boxes (x1, y1, x2, y2) and labels in it."""
    draw = torch.Generator().manual_seed(0)
    parts = []
    for dataset, count in zip(load_fashion_mnist(), (train, test), strict=True):
        images, labels = dataset.tensors
        by_label = [_as_pixels(images[labels == CLASSES.index(name)]) for name in SHOWN]
        parts.append([_scene(by_label, draw) for _ in range(count)])
    return parts[0], parts[1]


def _as_pixels(images: Tensor) -> Tensor:
    """From 0 to 1, whatever they were normalised to."""
    return (images[:, 0] - images.min()) / (images.max() - images.min())


def _scene(by_label: list[Tensor], draw: torch.Generator) -> Scene:
    """A garment in every other cell of a grid, on average, and in one at least."""
    image = torch.zeros(_CELLS * _CELL, _CELLS * _CELL)
    filled = torch.rand(_CELLS**2, generator=draw)
    boxes, labels = [], []
    for cell in (filled > min(0.5, float(filled.max()) - 1e-6)).nonzero().flatten().tolist():
        label = _below(len(by_label), draw)
        garment = by_label[label][_below(len(by_label[label]), draw)]
        top, left = (_CELL * at + _below(_CELL - _GARMENT + 1, draw) for at in divmod(cell, _CELLS))
        image[top : top + _GARMENT, left : left + _GARMENT] = garment
        rows, columns = garment.nonzero().T
        corners = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        boxes.append([float(at) + offset for at, offset in zip(corners, (left, top, left, top), strict=True)])
        labels.append(label + 1)
    return image.expand(3, -1, -1), {"boxes": torch.tensor(boxes), "labels": torch.tensor(labels)}


def _below(end: int, draw: torch.Generator) -> int:
    return int(torch.randint(end, (), generator=draw))
