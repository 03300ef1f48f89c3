"""Detection, segmentation and generation: necks, skips and several outputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cnn import BasicBlock, conv_bn, head
from .registry import architecture, images


class Conv(nn.Module):
    """Convolution, norm and SiLU, in the YOLO manner."""

    def __init__(self, c1: int, c2: int, k: int = 1, s: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, k // 2, bias=False)
        self.bn = nn.BatchNorm2d(c2)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))


class YoloBottleneck(nn.Module):
    """Two convolutions and perhaps a shortcut."""

    def __init__(self, c: int, shortcut: bool) -> None:
        super().__init__()
        self.cv1 = Conv(c, c, 3)
        self.cv2 = Conv(c, c, 3)
        self.add = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return x + self.cv2(self.cv1(x)) if self.add else self.cv2(self.cv1(x))


class C2f(nn.Module):
    """Split in two, extend the list with each bottleneck's output, and join."""

    def __init__(self, c1: int, c2: int, n: int = 1, shortcut: bool = False) -> None:
        super().__init__()
        self.c = c2 // 2
        self.cv1 = Conv(c1, 2 * self.c)
        self.cv2 = Conv((2 + n) * self.c, c2)
        self.m = nn.ModuleList(YoloBottleneck(self.c, shortcut) for _ in range(n))

    def forward(self, x: Tensor) -> Tensor:
        y = list(self.cv1(x).chunk(2, 1))
        y.extend(m(y[-1]) for m in self.m)
        return self.cv2(torch.cat(y, 1))


class C2fSplit(C2f):
    """The same by torch.split with the attribute."""

    def forward(self, x: Tensor) -> Tensor:
        y = list(self.cv1(x).split((self.c, self.c), 1))
        y.extend(m(y[-1]) for m in self.m)
        return self.cv2(torch.cat(y, 1))


class SPPF(nn.Module):
    """Pools of pools, joined."""

    def __init__(self, c1: int, c2: int) -> None:
        super().__init__()
        self.cv1 = Conv(c1, c1 // 2)
        self.cv2 = Conv(c1 // 2 * 4, c2)
        self.m = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = [self.cv1(x)]
        y.extend(self.m(y[-1]) for _ in range(3))
        return self.cv2(torch.cat(y, 1))


@architecture("c2f", images())
def c2f() -> nn.Module:
    """Build C2f blocks with chunk."""
    return nn.Sequential(Conv(3, 16, 3, 2), C2f(16, 16, 2, True), Conv(16, 32, 3, 2), C2f(32, 32, 1), head(32))


@architecture("c2f_split", images())
def c2f_split() -> nn.Module:
    """Build C2f blocks with split sizes held as an attribute."""
    return nn.Sequential(Conv(3, 16, 3, 2), C2fSplit(16, 32, 2, True), C2fSplit(32, 32, 1), head(32))


class C3(nn.Module):
    """YOLOv5's cross stage block."""

    def __init__(self, c1: int, c2: int, n: int = 1) -> None:
        super().__init__()
        self.cv1 = Conv(c1, c2 // 2)
        self.cv2 = Conv(c1, c2 // 2)
        self.cv3 = Conv(c2, c2)
        self.m = nn.Sequential(*(YoloBottleneck(c2 // 2, True) for _ in range(n)))

    def forward(self, x: Tensor) -> Tensor:
        return self.cv3(torch.cat((self.m(self.cv1(x)), self.cv2(x)), 1))


@architecture("yolo", images(3, 32, 1))
class Yolo(nn.Module):
    """A backbone, a top-down and bottom-up neck, and a head on each of two scales."""

    def __init__(self, nc: int = 5) -> None:
        super().__init__()
        self.no = nc + 4
        self.stem = Conv(3, 8, 3, 2)
        self.stage1 = nn.Sequential(Conv(8, 16, 3, 2), C2f(16, 16, 1, True))
        self.stage2 = nn.Sequential(Conv(16, 32, 3, 2), C2f(32, 32, 1, True), SPPF(32, 32))
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.up = C2f(48, 16)
        self.down = Conv(16, 16, 3, 2)
        self.bottom = C3(48, 32)
        self.boxes = nn.ModuleList(nn.Sequential(Conv(c, 16, 3), nn.Conv2d(16, 4, 1)) for c in (16, 32))
        self.classes = nn.ModuleList(nn.Sequential(Conv(c, 16, 3), nn.Conv2d(16, nc, 1)) for c in (16, 32))

    def forward(self, x: Tensor) -> list[Tensor]:
        p1 = self.stage1(self.stem(x))
        p2 = self.stage2(p1)
        n1 = self.up(torch.cat([self.upsample(p2), p1], 1))
        n2 = self.bottom(torch.cat([self.down(n1), p2], 1))
        features = [n1, n2]
        for i in range(len(features)):
            features[i] = torch.cat((self.boxes[i](features[i]), self.classes[i](features[i])), 1)
        return features


@architecture("yolo_decoded", images(3, 32, 1))
class YoloDecoded(nn.Module):
    """Heads flattened, joined over anchors and decoded by an expectation over bins."""

    def __init__(self, nc: int = 5, reg_max: int = 8) -> None:
        super().__init__()
        self.nc = nc
        self.reg_max = reg_max
        self.no = nc + reg_max * 4
        self.backbone1 = nn.Sequential(Conv(3, 8, 3, 2), Conv(8, 16, 3, 2), C2f(16, 16, 1, True))
        self.backbone2 = nn.Sequential(Conv(16, 32, 3, 2), C2f(32, 32, 1, True))
        self.cv2 = nn.ModuleList(nn.Sequential(Conv(c, 16, 3), nn.Conv2d(16, 4 * reg_max, 1)) for c in (16, 32))
        self.cv3 = nn.ModuleList(nn.Sequential(Conv(c, 16, 3), nn.Conv2d(16, nc, 1)) for c in (16, 32))
        self.register_buffer("project", torch.arange(reg_max, dtype=torch.float32))

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        a = self.backbone1(x)
        maps = [a, self.backbone2(a)]
        maps = [torch.cat((self.cv2[i](m), self.cv3[i](m)), 1) for i, m in enumerate(maps)]
        joined = torch.cat([m.view(m.shape[0], self.no, -1) for m in maps], 2)
        box, cls = joined.split((self.reg_max * 4, self.nc), 1)
        b, _, anchors = box.shape
        bins = box.view(b, 4, self.reg_max, anchors).softmax(2)
        box = (bins * self.project.view(1, 1, -1, 1)).sum(2)
        return torch.cat((box, cls.sigmoid()), 1), maps


class UNetBase(nn.Module):
    """Down twice, up twice by transposed convolutions, with skips."""

    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.down1 = nn.Sequential(conv_bn(3, 8), conv_bn(8, 8))
        self.down2 = conv_bn(8, 16)
        self.middle = conv_bn(16, 32)
        self.up2 = nn.ConvTranspose2d(32, 16, 2, 2, groups=groups)
        self.dec2 = conv_bn(32, 16)
        self.up1 = nn.ConvTranspose2d(16, 8, 2, 2, groups=groups)
        self.dec1 = conv_bn(16, 8)
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        d1 = self.down1(x)
        d2 = self.down2(F.max_pool2d(d1, 2))
        m = self.middle(F.max_pool2d(d2, 2))
        u2 = self.dec2(torch.cat([self.up2(m), d2], dim=1))
        u1 = self.dec1(torch.cat([self.up1(u2), d1], dim=1))
        return self.out(u1)


@architecture("unet", images())
def unet() -> nn.Module:
    """Build the ordinary U-Net."""
    return UNetBase()


@architecture("unet_grouped_transpose", images())
def unet_grouped_transpose() -> nn.Module:
    """Build the U-Net with grouped transposed convolutions."""
    return UNetBase(groups=4)


@architecture("hrnet", images())
class HRNet(nn.Module):
    """Two resolutions side by side, fused both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16)
        self.transition = conv_bn(16, 32, 3, 2)
        self.branches = nn.ModuleList([BasicBlock(16, 16), BasicBlock(32, 32)])
        self.low_to_high = nn.Sequential(nn.Conv2d(32, 16, 1, bias=False), nn.BatchNorm2d(16))
        self.high_to_low = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32))
        self.last = nn.Sequential(conv_bn(48, 24, 1), nn.Conv2d(24, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        high = self.stem(x)
        low = self.transition(high)
        high, low = self.branches[0](high), self.branches[1](low)
        lifted = F.interpolate(self.low_to_high(low), size=high.shape[-2:], mode="bilinear", align_corners=False)
        fused_high, fused_low = F.relu(high + lifted), F.relu(low + self.high_to_low(high))
        fused_low = F.interpolate(fused_low, size=fused_high.shape[-2:], mode="bilinear", align_corners=False)
        return self.last(torch.cat([fused_high, fused_low], 1))


@architecture("fpn", images(3, 32))
class FPN(nn.Module):
    """A feature pyramid, returned as a dict of maps with a fixed width."""

    def __init__(self) -> None:
        super().__init__()
        self.c2 = nn.Sequential(conv_bn(3, 16, 3, 2), BasicBlock(16, 16))
        self.c3 = BasicBlock(16, 24, 2)
        self.c4 = BasicBlock(24, 32, 2)
        self.lateral = nn.ModuleList(nn.Conv2d(c, 16, 1) for c in (16, 24, 32))
        self.smooth = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        c2 = self.c2(x)
        c3 = self.c3(c2)
        features = [c2, c3, self.c4(c3)]
        laterals = [lateral(f) for lateral, f in zip(self.lateral, features, strict=True)]
        for i in range(len(laterals) - 1, 0, -1):
            laterals[i - 1] = laterals[i - 1] + F.interpolate(laterals[i], scale_factor=2, mode="nearest")
        return {f"p{i + 2}": smooth(f) for i, (smooth, f) in enumerate(zip(self.smooth, laterals, strict=True))}


@architecture("aspp", images())
class ASPP(nn.Module):
    """Dilated branches and a pooled one, joined and projected."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(conv_bn(3, 16), conv_bn(16, 24, 3, 2))
        self.convs = nn.ModuleList([conv_bn(24, 16, 1)])
        for rate in (2, 4):
            self.convs.append(
                nn.Sequential(
                    nn.Conv2d(24, 16, 3, padding=rate, dilation=rate, bias=False), nn.BatchNorm2d(16), nn.ReLU()
                )
            )
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(24, 16, 1), nn.ReLU())
        self.project = nn.Sequential(conv_bn(64, 24, 1), nn.Dropout(0.5))
        self.classifier = nn.Conv2d(24, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2:]
        x = self.backbone(x)
        branches = [conv(x) for conv in self.convs]
        branches.append(F.interpolate(self.pool(x), size=x.shape[-2:], mode="bilinear", align_corners=False))
        x = self.classifier(self.project(torch.cat(branches, dim=1)))
        return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


@architecture("ssd", images(3, 32))
class SSD(nn.Module):
    """Heads on each scale, permuted, reshaped and joined over anchors."""

    def __init__(self, classes: int = 5, anchors: int = 3) -> None:
        super().__init__()
        self.num_classes = classes
        self.stages = nn.ModuleList([conv_bn(3, 16, 3, 2), conv_bn(16, 24, 3, 2), conv_bn(24, 32, 3, 2)])
        self.loc = nn.ModuleList(nn.Conv2d(c, anchors * 4, 3, padding=1) for c in (16, 24, 32))
        self.conf = nn.ModuleList(nn.Conv2d(c, anchors * classes, 3, padding=1) for c in (16, 24, 32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        locations, confidences = [], []
        for stage, loc, conf in zip(self.stages, self.loc, self.conf, strict=True):
            x = stage(x)
            locations.append(loc(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4))
            confidences.append(conf(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, self.num_classes))
        return torch.cat(locations, 1), F.softmax(torch.cat(confidences, 1), dim=-1)


class AttentionRefinement(nn.Module):
    """A convolution gated by its own pooled channels."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = conv_bn(inputs, outputs)
        self.attention = nn.Sequential(
            nn.Conv2d(outputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        feat = self.conv(x)
        return torch.mul(feat, self.attention(F.avg_pool2d(feat, feat.size()[2:])))


@architecture("bisenet", images(3, 32))
class BiSeNet(nn.Module):
    """A spatial path and a refined context path, fused."""

    def __init__(self) -> None:
        super().__init__()
        self.spatial = nn.Sequential(conv_bn(3, 16, 3, 2), conv_bn(16, 16, 3, 2))
        self.context1 = nn.Sequential(conv_bn(3, 8, 3, 2), conv_bn(8, 16, 3, 2))
        self.context2 = conv_bn(16, 32, 3, 2)
        self.arm1 = AttentionRefinement(16, 16)
        self.arm2 = AttentionRefinement(32, 16)
        self.tail = conv_bn(32, 16, 1)
        self.fuse = conv_bn(32, 24, 1)
        self.gate = nn.Sequential(nn.Conv2d(24, 8, 1), nn.ReLU(), nn.Conv2d(8, 24, 1), nn.Sigmoid())
        self.out = nn.Conv2d(24, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        c1 = self.context1(x)
        c2 = self.context2(c1)
        tail = self.tail(F.avg_pool2d(c2, c2.size()[2:]))
        refined = F.interpolate(self.arm2(c2) + tail, c1.shape[2:], mode="nearest") + self.arm1(c1)
        fused = self.fuse(torch.cat([self.spatial(x), refined], dim=1))
        attention = self.gate(F.avg_pool2d(fused, fused.size()[2:]))
        return F.interpolate(self.out(fused + fused * attention), x.shape[2:], mode="bilinear", align_corners=True)
