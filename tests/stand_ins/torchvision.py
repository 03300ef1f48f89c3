"""Stands in for torchvision where it is not installed: a ResNet of bottlenecks with its names, but few channels."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.downsample = (
            nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))
            if inputs != 4 * width
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(torch.relu(self.bn2(self.conv2(y)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class _ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, stride=4, padding=3, bias=False), nn.BatchNorm2d(8)
        self.maxpool = nn.MaxPool2d(4)
        self.layer1 = nn.Sequential(_Bottleneck(8, 8), _Bottleneck(32, 8))
        self.layer2 = nn.Sequential(_Bottleneck(32, 16), _Bottleneck(64, 16))
        self.fc = nn.Linear(64, 1000)

    def forward(self, x: Tensor) -> Tensor:
        y = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        return self.fc(self.layer2(self.layer1(y)).mean((2, 3)))


def _resnet50(*, weights: str | None = None) -> nn.Module:
    return _ResNet()


models = SimpleNamespace(resnet50=_resnet50)
