"""Hard-coded sizes, and models where nothing can be cut."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .cnn import conv_bn
from .registry import architecture, floats, images


@architecture("hard_coded_sizes", images(3, 8))
class HardCodedSizes(nn.Module):
    """A view with literals, so that the layer before it keeps its width."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16)
        self.conv = conv_bn(16, 64)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(self.stem(x))
        x = x.view(x.shape[0], 4, 16, 8, 8).mean(1)
        return self.fc(x.mean((2, 3)))


@architecture("hard_coded_only", images(3, 8), cuttable=False)
class HardCodedOnly(nn.Module):
    """One hidden layer, behind a view with literals."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3, padding=1)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).view(x.shape[0], 4, 16, 8, 8)
        return self.fc(F.relu(x).amax(1).mean((2, 3)))


@architecture("single_linear", floats(3, 12), cuttable=False)
def single_linear() -> nn.Module:
    """Build a model of one layer, whose inputs and outputs are the caller's."""
    return nn.Sequential(nn.Linear(12, 10))


@architecture("no_parameters", images(), cuttable=False)
def no_parameters() -> nn.Module:
    """Build a model without a weight."""
    return nn.Sequential(nn.AvgPool2d(2), nn.ReLU(), nn.Flatten())


@architecture("depthwise_only", images(8), cuttable=False)
def depthwise_only() -> nn.Module:
    """Build depthwise layers from the input to the output."""
    return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, groups=8))


@architecture("identity_residual", images(8))
class IdentityResidual(nn.Module):
    """Adds to its own input, so that only the inner layer can be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(8, 24, 3, padding=1)
        self.conv2 = nn.Conv2d(24, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.relu(self.conv1(x)))
