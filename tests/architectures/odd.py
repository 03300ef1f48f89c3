"""Odd ends: shared and frozen modules, control flow, transforms and products of channels."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.torchscript import script

from .cnn import conv_bn, head
from .registry import architecture, floats, images


@architecture("shared_module", images())
class SharedModule(nn.Module):
    """One block called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16)
        self.block = nn.Sequential(conv_bn(16, 24), conv_bn(24, 16))
        self.head = head(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.stem(x))
        return self.head(self.block(x))


@architecture("shared_head", images())
class SharedHead(nn.Module):
    """One head applied to two maps, as RetinaNet has it."""

    def __init__(self) -> None:
        super().__init__()
        self.stage1 = conv_bn(3, 16)
        self.stage2 = conv_bn(16, 16, 3, 2)
        self.head = nn.Sequential(conv_bn(16, 24), nn.Conv2d(24, 4, 1))

    def forward(self, x: Tensor) -> list[Tensor]:
        a = self.stage1(x)
        return [self.head(a), self.head(self.stage2(a))]


@architecture("frozen_backbone", images())
class FrozenBackbone(nn.Module):
    """A backbone without gradients under a trained head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(conv_bn(3, 16), conv_bn(16, 24))
        for parameter in self.backbone.parameters():
            parameter.requires_grad = False
        self.neck = conv_bn(24, 32)
        self.head = head(32)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.neck(self.backbone(x)))


@architecture("no_grad_backbone", images())
class NoGradBackbone(nn.Module):
    """A backbone run under no_grad and detached."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(conv_bn(3, 16), conv_bn(16, 24))
        self.neck = conv_bn(24, 32)
        self.head = head(32)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.backbone(x)
        return self.head(self.neck(features.detach()))


class OwnSwish(torch.autograd.Function):
    """Swish with a hand-written gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s * (1 + x * (1 - s)))


@architecture("autograd_function", images())
class AutogradFunctionNet(nn.Module):
    """A custom autograd function in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 24, 3, padding=1)
        self.head = head(24)

    def forward(self, x: Tensor) -> Tensor:
        x = OwnSwish.apply(self.conv1(x))
        return self.head(F.relu(self.conv2(x)))


class SortChannels(torch.autograd.Function):
    """Sorts over channels, which mixes them all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        values, order = x.sort(dim=1)
        ctx.save_for_backward(order)
        return values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (order,) = ctx.saved_tensors
        return torch.zeros_like(grad).scatter_(1, order, grad)


@architecture("autograd_function_mixing", images())
class AutogradMixing(nn.Module):
    """A custom function that no channel passes through unmixed; the layer after it can still be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 24, 3, padding=1)
        self.head = head(24)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv2(SortChannels.apply(self.conv1(x)))))


@architecture("branch_on_data", images())
class BranchOnData(nn.Module):
    """Takes one of two branches of equal shapes by the input's mean."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16)
        self.positive = nn.Sequential(conv_bn(16, 24), conv_bn(24, 16))
        self.negative = nn.Sequential(conv_bn(16, 24), conv_bn(24, 16))
        self.head = head(16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        y = self.positive(y) if x.mean() > 0 else self.negative(y)
        return self.head(y)


@architecture("early_exit", images())
class EarlyExit(nn.Module):
    """Leaves at the first head when it is sure enough, which it always is here."""

    def __init__(self, threshold: float = 0.05) -> None:
        super().__init__()
        self.threshold = threshold
        self.stage1 = nn.Sequential(conv_bn(3, 16), conv_bn(16, 24))
        self.exit1 = head(24)
        self.stage2 = nn.Sequential(conv_bn(24, 32), conv_bn(32, 32))
        self.exit2 = head(32)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage1(x)
        early = self.exit1(x)
        if early.softmax(-1).max() > self.threshold:
            return early
        return self.exit2(self.stage2(x))


@architecture("unused_layer", images())
class UnusedLayer(nn.Module):
    """Holds a layer that forward never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 16)
        self.auxiliary = nn.Linear(16, 5)
        self.conv2 = conv_bn(16, 24)
        self.head = head(24)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv2(self.conv1(x)))


class GlobalFilter(nn.Module):
    """Filters in the frequency domain with a complex weight for each channel."""

    def __init__(self, dim: int, h: int, w: int) -> None:
        super().__init__()
        self.complex_weight = nn.Parameter(torch.randn(h, w, dim, 2) * 0.5)

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[1:3]
        freq = torch.fft.rfft2(x, dim=(1, 2), norm="ortho")
        freq = freq * torch.view_as_complex(self.complex_weight)
        return torch.fft.irfft2(freq, s=size, dim=(1, 2), norm="ortho")


@architecture("fft_filter", images(3, 8))
class GFNet(nn.Module):
    """Spatial Fourier filters between MLPs."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 1)
        self.norm = nn.LayerNorm(dim)
        self.filter = GlobalFilter(dim, 8, 5)
        self.mlp = nn.Sequential(nn.Linear(dim, 48), nn.GELU(), nn.Linear(48, dim))
        self.head = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).permute(0, 2, 3, 1)
        x = x + self.mlp(self.filter(self.norm(x)))
        return self.head(x.mean(dim=(1, 2)))


@architecture("fft_hidden", floats(2, 9, 12))
class FNet(nn.Module):
    """A Fourier transform over positions and channels: the residual stream must stay, the MLP need not."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, 32)
        self.norm = nn.LayerNorm(32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = self.norm(x + torch.fft.fft2(x, dim=(-2, -1)).real)
        return self.head((x + self.mlp(x)).mean(1))


@architecture("bilinear_pooling", images(3, 8))
class BilinearPooling(nn.Module):
    """The outer product of a map's channels with themselves, as features."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv_bn(3, 24), conv_bn(24, 8))
        self.fc = nn.Linear(8 * 8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).flatten(2)
        gram = torch.bmm(x, x.transpose(1, 2)) / x.shape[2]
        gram = gram.reshape(x.shape[0], -1)
        gram = torch.sign(gram) * torch.sqrt(torch.abs(gram) + 1e-5)
        return self.fc(F.normalize(gram))


@architecture("gram_output", images(3, 8))
class GramOutput(nn.Module):
    """Returns Gram matrices whose shape is the width of a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 16)
        self.conv2 = conv_bn(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(self.conv1(x)).flatten(2)
        return y @ y.transpose(1, 2)


@lru_cache
def _ramp(length: int, channels: int) -> Tensor:
    return torch.linspace(0, 1, length)[:, None].expand(length, channels)


_AREAS: dict[tuple[int, int], int] = {}


@architecture("caches", images(3, 8))
class Caches(nn.Module):
    """Tensors and sizes that the code remembers from one pass to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv_bn(3, 16), conv_bn(16, 24))
        self.mixer = nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 24))
        self.fc = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        sizes = x.shape[2], x.shape[3]
        if sizes not in _AREAS:
            _AREAS[sizes] = x.shape[2] * x.shape[3]
        x = x.reshape(*x.shape[:2], _AREAS[sizes]).transpose(1, 2)
        x = x + _ramp(x.shape[1], x.shape[2])
        return self.fc((x + self.mixer(x)).mean(1))


@script
def _scaled(x: Tensor) -> Tensor:
    return torch.tanh(x) / x.size(-1) ** 0.5


@script
def _gated(x: Tensor, gate: Tensor) -> Tensor:
    return x * torch.sigmoid(gate)


@architecture("scripted", floats(2, 9, 12))
class Scripted(nn.Module):
    """Parts in TorchScript, of which one reads a size, which must stay."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gate = nn.Linear(12, 32), nn.Linear(12, 32)
        self.hidden = nn.Linear(32, 24)
        self.fc = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.hidden(_gated(self.embed(x), self.gate(x)))
        return self.fc(_scaled(x).mean(1))
