"""ResNet-18 (He et al., 2015) for colour images, in widths of your choice: plain 3×3 convolutions and shortcuts."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from secateur.examples.small_resnet import ResidualBlock


class ResNet18(nn.Module):
    """A stem that shrinks the image fourfold, two residual blocks for each width, global pooling and a classifier."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512), classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks = [ResidualBlock(widths[0], widths[0]), ResidualBlock(widths[0], widths[0])]
        for before, width in pairwise(widths):
            blocks += [ResidualBlock(before, width, stride=2), ResidualBlock(width, width)]
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits
