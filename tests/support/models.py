"""The small model and data that the tests share."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class ConvNet(nn.Module):
    """A convolution, a norm, two linear layers: every kind of parameter that pruning must tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.hidden = nn.Linear(8 * 4 * 4, 32)
        self.output = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        return self.output(torch.relu(self.hidden(x.flatten(1))))


def blobs(examples: int = 256, seed: int = 0) -> TensorDataset:
    """Four classes of noisy 4×4 images with four channels: learnt in a few epochs."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(4, 4, 4, 4, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(examples) % 4
    return TensorDataset(centres[labels] + 0.7 * torch.randn(examples, 4, 4, 4, generator=generator), labels)


def trained_convnet() -> ConvNet:
    """The same weights every time."""
    with torch.random.fork_rng():
        model = ConvNet()
    model.load_state_dict(_trained_weights())
    return model


@cache
def _trained_weights() -> dict[str, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = ConvNet()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for images, labels in DataLoader(blobs(), 32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.state_dict()


def share_right(model: nn.Module, data: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The accuracy, counted by a plain loop."""
    right = [model.eval()(images).argmax(1) == labels for images, labels in data]
    return sum(int(batch.sum()) for batch in right) / sum(map(len, right))
