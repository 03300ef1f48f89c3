"""Classic convolutional classifiers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import architecture, images


def conv_bn(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Build convolution, batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def head(channels: int, classes: int = 10) -> nn.Sequential:
    """Build pooling, flattening and a classifier."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(channels, classes))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


@architecture("resnet_basic", images())
class ResNet(nn.Module):
    """A ResNet of basic blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16)
        self.layer1 = nn.Sequential(BasicBlock(16, 16), BasicBlock(16, 16))
        self.layer2 = nn.Sequential(BasicBlock(16, 32, 2), BasicBlock(32, 32))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.stem(x)))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Bottleneck(nn.Module):
    """1×1, 3×3 (possibly grouped), 1×1 and a shortcut."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv1 = conv_bn(inputs, width, 1)
        self.conv2 = conv_bn(width, width, 3, stride, groups)
        self.conv3 = nn.Sequential(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv3(self.conv2(self.conv1(x))) + self.shortcut(x))


@architecture("resnet_bottleneck", images())
def resnet_bottleneck() -> nn.Module:
    """Build a ResNet of bottlenecks."""
    return nn.Sequential(
        conv_bn(3, 16), Bottleneck(16, 8, 32), Bottleneck(32, 8, 32), Bottleneck(32, 16, 64, 2), head(64)
    )


@architecture("resnext", images())
def resnext() -> nn.Module:
    """Build a ResNeXt: bottlenecks around grouped convolutions."""
    return nn.Sequential(
        conv_bn(3, 16),
        Bottleneck(16, 16, 32, groups=4),
        Bottleneck(32, 16, 32, groups=4),
        Bottleneck(32, 32, 64, 2, groups=8),
        head(64),
    )


class PreActivationBlock(nn.Module):
    """Norm and ReLU before each convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, channels * 2, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels * 2)
        self.conv2 = nn.Conv2d(channels * 2, channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.bn1(x)))
        return x + self.conv2(F.relu(self.bn2(out)))


@architecture("resnet_preact", images())
def resnet_preact() -> nn.Module:
    """Build a ResNet whose residual stream is not normed until the end."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        PreActivationBlock(16),
        PreActivationBlock(16),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        head(16),
    )


class OptionABlock(nn.Module):
    """A basic block whose shortcut pads the missing channels with zeros."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = conv_bn(inputs, outputs, 3, stride)
        self.conv2 = nn.Sequential(nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs))
        self.stride = stride
        self.pad = (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        if self.stride != 1:
            shortcut = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad), "constant", 0)
        return F.relu(self.conv2(self.conv1(x)) + shortcut)


@architecture("resnet_option_a", images())
def resnet_option_a() -> nn.Module:
    """Build the CIFAR ResNet with zero-channel shortcuts."""
    return nn.Sequential(
        conv_bn(3, 8),
        OptionABlock(8, 8),
        OptionABlock(8, 16, 2),
        OptionABlock(16, 16),
        OptionABlock(16, 32, 2),
        head(32),
    )


class DenseLayer(nn.Module):
    """BN-ReLU-1×1, BN-ReLU-3×3 on everything so far."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 2 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * growth)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        x = torch.cat(features, 1)
        return self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))


class DenseBlock(nn.Module):
    """Layers each fed with all the earlier ones."""

    def __init__(self, inputs: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DenseLayer(inputs + i * growth, growth) for i in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, 1)


@architecture("densenet", images())
def densenet() -> nn.Module:
    """Build a DenseNet of two blocks and a transition."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        DenseBlock(16, 8, 3),
        nn.BatchNorm2d(40),
        nn.ReLU(),
        nn.Conv2d(40, 24, 1, bias=False),
        nn.AvgPool2d(2),
        DenseBlock(24, 8, 2),
        nn.BatchNorm2d(40),
        nn.ReLU(),
        head(40),
    )


class InceptionBlock(nn.Module):
    """Four branches side by side."""

    def __init__(self, inputs: int, one: int, three: int, five: int, pool: int) -> None:
        super().__init__()
        self.branch1 = conv_bn(inputs, one, 1)
        self.branch2 = nn.Sequential(conv_bn(inputs, 8, 1), conv_bn(8, three, 3))
        self.branch3 = nn.Sequential(conv_bn(inputs, 8, 1), conv_bn(8, five, 5))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_bn(inputs, pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], dim=1)


@architecture("inception", images())
def inception() -> nn.Module:
    """Build two inception blocks."""
    return nn.Sequential(
        conv_bn(3, 16), InceptionBlock(16, 8, 16, 8, 8), nn.MaxPool2d(2), InceptionBlock(40, 16, 16, 8, 8), head(48)
    )


@architecture("vgg", images())
class VGG(nn.Module):
    """Plain convolutions, flattened with their positions into linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 24, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((4, 4))
        self.classifier = nn.Sequential(
            nn.Linear(24 * 4 * 4, 64),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(64, 32),
            nn.ReLU(),
            nn.Linear(32, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        return self.classifier(torch.flatten(x, 1))


@architecture("lenet_view_literal", images(1, 16))
class LeNet(nn.Module):
    """Flattens with the literal width that the tutorials write."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 5, padding=2)
        self.conv2 = nn.Conv2d(8, 16, 5, padding=2)
        self.fc1 = nn.Linear(16 * 4 * 4, 40)
        self.fc2 = nn.Linear(40, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(-1, 16 * 4 * 4)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


class Fire(nn.Module):
    """Squeeze, then two expansions side by side."""

    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeeze, 1)
        self.expand1x1 = nn.Conv2d(squeeze, expand, 1)
        self.expand3x3 = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.expand1x1(x)), F.relu(self.expand3x3(x))], 1)


@architecture("squeezenet", images())
def squeezenet() -> nn.Module:
    """Build a SqueezeNet that classifies by a convolution and a global pool."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        Fire(16, 8, 16),
        nn.MaxPool2d(2),
        Fire(32, 8, 24),
        nn.Dropout(),
        nn.Conv2d(48, 10, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


class SEGate(nn.Module):
    """Squeeze and excitation with linear layers."""

    def __init__(self, channels: int, reduction: int = 4) -> None:
        super().__init__()
        self.fc = nn.Sequential(
            nn.Linear(channels, channels // reduction),
            nn.ReLU(),
            nn.Linear(channels // reduction, channels),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.size()
        gate = F.adaptive_avg_pool2d(x, 1).view(b, c)
        return x * self.fc(gate).view(b, c, 1, 1).expand_as(x)


@architecture("se_gates", images())
def se_gates() -> nn.Module:
    """Build convolutions gated by their own pooled channels."""
    return nn.Sequential(conv_bn(3, 16), SEGate(16), conv_bn(16, 32), SEGate(32), head(32))


class RegNetBlock(nn.Module):
    """A grouped bottleneck with an SE gate of convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int, group_width: int) -> None:
        super().__init__()
        self.a = conv_bn(inputs, outputs, 1)
        self.b = conv_bn(outputs, outputs, 3, stride, outputs // group_width)
        self.se = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(outputs, inputs // 4, 1),
            nn.ReLU(),
            nn.Conv2d(inputs // 4, outputs, 1),
            nn.Sigmoid(),
        )
        self.c = nn.Sequential(nn.Conv2d(outputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.proj: nn.Module | None = None
        if inputs != outputs or stride != 1:
            self.proj = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.b(self.a(x))
        out = self.c(self.se(out) * out)
        return F.relu((x if self.proj is None else self.proj(x)) + out)


@architecture("regnet", images())
def regnet() -> nn.Module:
    """Build a RegNetY of two stages."""
    return nn.Sequential(
        conv_bn(3, 16, 3, 2), RegNetBlock(16, 24, 1, 8), RegNetBlock(24, 24, 1, 8), RegNetBlock(24, 48, 2, 8), head(48)
    )


class FrozenBatchNorm(nn.Module):
    """Batch norm whose weights and statistics are all buffers."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", 1 + 0.2 * torch.randn(channels))
        self.register_buffer("bias", 0.2 * torch.randn(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight.reshape(1, -1, 1, 1) * (self.running_var.reshape(1, -1, 1, 1) + self.eps).rsqrt()
        return x * scale + (self.bias.reshape(1, -1, 1, 1) - self.running_mean.reshape(1, -1, 1, 1) * scale)


@architecture("frozen_batchnorm", images())
class FrozenBatchNormNet(nn.Module):
    """A residual net whose norms hold no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = FrozenBatchNorm(16)
        self.conv2 = nn.Conv2d(16, 24, 3, padding=1, bias=False)
        self.bn2 = FrozenBatchNorm(24)
        self.conv3 = nn.Conv2d(24, 16, 3, padding=1, bias=False)
        self.bn3 = FrozenBatchNorm(16)
        self.head = head(16)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(x)))))
        return self.head(F.relu(x + y))
