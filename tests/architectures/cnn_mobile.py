"""Convolutional classifiers made of depthwise convolutions, splits and cheap features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cnn import conv_bn, head
from .registry import architecture, images


class InvertedResidual(nn.Module):
    """Expand, depthwise, project; a shortcut where shapes allow."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        self.use_res_connect = stride == 1 and inputs == outputs
        layers: list[nn.Module] = []
        if expand != 1:
            layers += [nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(inplace=True)]
        layers += [
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        if self.use_res_connect:
            return x + self.conv(x)
        return self.conv(x)


@architecture("mobilenet_v2", images())
class MobileNetV2(nn.Module):
    """Inverted residuals and a mean over space."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()),
            InvertedResidual(16, 8, 1, 1),
            InvertedResidual(8, 16, 2, 4),
            InvertedResidual(16, 16, 1, 4),
            nn.Sequential(nn.Conv2d(16, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU6()),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        return self.classifier(F.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


class SqueezeExcitation(nn.Module):
    """Squeeze and excitation with 1×1 convolutions."""

    def __init__(self, channels: int, squeeze: int, activation: type[nn.Module], gate: type[nn.Module]) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeeze, 1)
        self.fc2 = nn.Conv2d(squeeze, channels, 1)
        self.activation = activation()
        self.scale_activation = gate()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.activation(self.fc1(self.avgpool(x)))
        return self.scale_activation(self.fc2(scale)) * x


class MobileNetV3Block(nn.Module):
    """An inverted residual with hardswish and an SE gate between."""

    def __init__(self, inputs: int, expanded: int, outputs: int, kernel: int, stride: int, use_se: bool) -> None:
        super().__init__()
        self.use_res = stride == 1 and inputs == outputs
        layers = [
            nn.Sequential(nn.Conv2d(inputs, expanded, 1, bias=False), nn.BatchNorm2d(expanded), nn.Hardswish()),
            nn.Sequential(
                nn.Conv2d(expanded, expanded, kernel, stride, kernel // 2, groups=expanded, bias=False),
                nn.BatchNorm2d(expanded),
                nn.Hardswish(),
            ),
        ]
        if use_se:
            layers.append(SqueezeExcitation(expanded, 8, nn.ReLU, nn.Hardsigmoid))
        layers.append(nn.Sequential(nn.Conv2d(expanded, outputs, 1, bias=False), nn.BatchNorm2d(outputs)))
        self.block = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        result = self.block(x)
        if self.use_res:
            result += x
        return result


@architecture("mobilenet_v3", images())
def mobilenet_v3() -> nn.Module:
    """Build a small MobileNetV3."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.Hardswish(),
        MobileNetV3Block(16, 24, 16, 3, 1, True),
        MobileNetV3Block(16, 40, 24, 3, 2, False),
        MobileNetV3Block(24, 48, 24, 5, 1, True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 64),
        nn.Hardswish(),
        nn.Linear(64, 10),
    )


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """Interleave the channels of the groups."""
    batch, channels, height, width = x.size()
    x = x.view(batch, groups, channels // groups, height, width)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(batch, channels, height, width)


class ShuffleUnit(nn.Module):
    """Half the channels pass, half are convolved, and the two are shuffled."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        branch = outputs // 2
        self.branch1: nn.Module = nn.Identity()
        if stride > 1:
            self.branch1 = nn.Sequential(
                nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False),
                nn.BatchNorm2d(inputs),
                conv_bn(inputs, branch, 1),
            )
        self.branch2 = nn.Sequential(
            conv_bn(inputs if stride > 1 else branch, branch, 1),
            nn.Conv2d(branch, branch, 3, stride, 1, groups=branch, bias=False),
            nn.BatchNorm2d(branch),
            conv_bn(branch, branch, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            x1, x2 = x.chunk(2, dim=1)
            out = torch.cat((x1, self.branch2(x2)), dim=1)
        else:
            out = torch.cat((self.branch1(x), self.branch2(x)), dim=1)
        return channel_shuffle(out, 2)


@architecture("shufflenet_v2", images())
def shufflenet_v2() -> nn.Module:
    """Build a ShuffleNetV2 stage and its head."""
    return nn.Sequential(
        conv_bn(3, 16),
        ShuffleUnit(16, 32, 2),
        ShuffleUnit(32, 32, 1),
        ShuffleUnit(32, 32, 1),
        conv_bn(32, 48, 1),
        head(48),
    )


class ShuffleNetV1Unit(nn.Module):
    """Grouped 1×1 convolutions with a shuffle between."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.compress = conv_bn(channels, channels // 2, 1, groups=groups)
        self.depthwise = nn.Conv2d(channels // 2, channels // 2, 3, padding=1, groups=channels // 2)
        self.expand = nn.Conv2d(channels // 2, channels, 1, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        out = channel_shuffle(self.compress(x), self.groups)
        return F.relu(x + self.expand(self.depthwise(out)))


@architecture("shufflenet_v1", images())
def shufflenet_v1() -> nn.Module:
    """Build grouped units with channel shuffles."""
    return nn.Sequential(conv_bn(3, 32), ShuffleNetV1Unit(32, 4), ShuffleNetV1Unit(32, 4), head(32))


class MBConv(nn.Module):
    """EfficientNet's block: expand, depthwise, SE on the block's inputs, project."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        mid = inputs * expand
        self.expand = nn.Sequential(nn.Conv2d(inputs, mid, 1, bias=False), nn.BatchNorm2d(mid), nn.SiLU())
        self.depthwise = nn.Sequential(
            nn.Conv2d(mid, mid, kernel, stride, kernel // 2, groups=mid, bias=False), nn.BatchNorm2d(mid), nn.SiLU()
        )
        self.se = SqueezeExcitation(mid, max(1, inputs // 4), nn.SiLU, nn.Sigmoid)
        self.project = nn.Sequential(nn.Conv2d(mid, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.skip = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out = self.project(self.se(self.depthwise(self.expand(x))))
        return out + x if self.skip else out


@architecture("efficientnet", images())
def efficientnet() -> nn.Module:
    """Build a small EfficientNet."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.SiLU(),
        MBConv(16, 16, 3, 1, 4),
        MBConv(16, 24, 5, 2, 4),
        MBConv(24, 24, 5, 1, 4),
        head(24),
    )


class FusedMBConv(nn.Module):
    """EfficientNetV2's early block: one full convolution in place of expand and depthwise."""

    def __init__(self, channels: int, expand: int) -> None:
        super().__init__()
        self.conv = conv_bn(channels, channels * expand)
        self.project = nn.Sequential(nn.Conv2d(channels * expand, channels, 1), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.conv(x)) + x


@architecture("efficientnet_v2", images())
def efficientnet_v2() -> nn.Module:
    """Build fused blocks followed by a depthwise one."""
    return nn.Sequential(conv_bn(3, 16), FusedMBConv(16, 2), FusedMBConv(16, 2), MBConv(16, 32, 3, 2, 4), head(32))


class GhostModule(nn.Module):
    """Real features, cheap ones made from them, and a slice to the width asked for."""

    def __init__(self, inputs: int, oup: int, ratio: int = 2) -> None:
        super().__init__()
        self.oup = oup
        primary = -(-oup // ratio)
        self.primary_conv = conv_bn(inputs, primary, 1)
        self.cheap_operation = conv_bn(primary, primary * (ratio - 1), 3, groups=primary)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.primary_conv(x)
        x2 = self.cheap_operation(x1)
        return torch.cat([x1, x2], dim=1)[:, : self.oup, :, :]


class GhostBottleneck(nn.Module):
    """Two ghost modules and a shortcut."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.ghost1 = GhostModule(channels, hidden)
        self.ghost2 = GhostModule(hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.ghost2(self.ghost1(x)) + x


@architecture("ghostnet", images())
def ghostnet() -> nn.Module:
    """Build ghost bottlenecks."""
    return nn.Sequential(conv_bn(3, 16), GhostBottleneck(16, 32), GhostModule(16, 24), head(24))


@architecture("ghostnet_uneven", images())
def ghostnet_uneven() -> nn.Module:
    """Build ghost modules whose last cheap channel is sliced away."""
    return nn.Sequential(conv_bn(3, 16), GhostModule(16, 31), GhostModule(31, 23), head(23))


class CrossStage(nn.Module):
    """Two convolutions split the stage; only one half goes through the blocks."""

    def __init__(self, inputs: int, outputs: int, blocks: int) -> None:
        super().__init__()
        half = outputs // 2
        self.conv1 = conv_bn(inputs, half, 1)
        self.conv2 = conv_bn(inputs, half, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(conv_bn(half, half, 1), conv_bn(half, half, 3)) for _ in range(blocks)
        )
        self.conv3 = conv_bn(2 * half, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        shortcut, y = self.conv1(x), self.conv2(x)
        for block in self.blocks:
            y = y + block(y)
        return self.conv3(torch.cat((y, shortcut), dim=1))


@architecture("cspnet", images())
def cspnet() -> nn.Module:
    """Build cross stage partial blocks."""
    return nn.Sequential(conv_bn(3, 16, 3, 2), CrossStage(16, 32, 2), CrossStage(32, 32, 1), head(32))


class Res2NetBlock(nn.Module):
    """A bottleneck whose slices add up in turn."""

    def __init__(self, channels: int, width: int, scale: int = 4) -> None:
        super().__init__()
        self.width = width
        self.scale = scale
        self.conv1 = conv_bn(channels, width * scale, 1)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(scale - 1))
        self.bns = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(scale - 1))
        self.conv3 = nn.Sequential(nn.Conv2d(width * scale, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        pieces = torch.chunk(self.conv1(x), self.scale, 1)
        out: list[Tensor] = []
        for i, (conv, bn) in enumerate(zip(self.convs, self.bns, strict=True)):
            piece = pieces[i] if i == 0 else out[-1] + pieces[i]
            out.append(F.relu(bn(conv(piece))))
        out.append(pieces[-1])
        return F.relu(self.conv3(torch.cat(out, 1)) + x)


@architecture("res2net", images())
def res2net() -> nn.Module:
    """Build two Res2Net blocks."""
    return nn.Sequential(conv_bn(3, 16), Res2NetBlock(16, 8), Res2NetBlock(16, 8), head(16))


class SelectiveKernel(nn.Module):
    """Two kernels mixed by a softmax over branches."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList([conv_bn(channels, channels, 3), conv_bn(channels, channels, 5)])
        self.reduce = nn.Conv2d(channels, 8, 1)
        self.select = nn.Conv2d(8, channels * 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        feats = torch.stack([branch(x) for branch in self.branches], dim=1)
        attention = self.select(F.relu(self.reduce(feats.sum(1).mean((2, 3), keepdim=True))))
        b, c, h, w = attention.shape
        attention = torch.softmax(attention.view(b, 2, c // 2, h, w), dim=1)
        return (feats * attention).sum(dim=1)


@architecture("sknet", images())
def sknet() -> nn.Module:
    """Build selective kernel units."""
    return nn.Sequential(conv_bn(3, 16), SelectiveKernel(16), conv_bn(16, 24), SelectiveKernel(24), head(24))


class RepVGGBlock(nn.Module):
    """Three parallel branches, one of them only a norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.rbr_dense = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        )
        self.rbr_1x1 = nn.Sequential(nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels))
        self.rbr_identity = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.rbr_dense(x) + self.rbr_1x1(x) + self.rbr_identity(x))


@architecture("repvgg", images())
def repvgg() -> nn.Module:
    """Build re-parametrisable blocks."""
    return nn.Sequential(
        conv_bn(3, 16), RepVGGBlock(16), RepVGGBlock(16), conv_bn(16, 32, 3, 2), RepVGGBlock(32), head(32)
    )


class ECAGate(nn.Module):
    """A gate by a 1-D convolution over the channels themselves, which ties neighbours together."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.adaptive_avg_pool2d(x, 1)
        y = self.conv(y.squeeze(-1).transpose(-1, -2)).transpose(-1, -2).unsqueeze(-1)
        return x * torch.sigmoid(y)


@architecture("eca_gates", images())
def eca_gates() -> nn.Module:
    """Build a net where one layer's channels are a convolution's positions."""
    return nn.Sequential(conv_bn(3, 16), conv_bn(16, 24), ECAGate(), conv_bn(24, 16), head(16))
