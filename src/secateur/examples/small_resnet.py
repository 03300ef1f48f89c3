"""A small residual network for 28×28 grey images: the model of the demo, and a worked example of a prunable CNN."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with batch norm; the shortcut is projected where the shape changes (He et al., 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        residual = F.relu(self.norm1(self.conv1(x)))
        residual = self.norm2(self.conv2(residual))
        return F.relu(residual + self.shortcut(x))


class SmallResNet(nn.Module):
    """A strided stem and one residual block for each width, then global pooling and a linear classifier."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128), classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, widths[0], 3, stride=2, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(widths[0])
        blocks = [ResidualBlock(widths[0], widths[0])]
        blocks += [ResidualBlock(a, b, stride=2) for a, b in pairwise(widths)]
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem_norm(self.stem(x)))
        x = self.blocks(x)
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits
