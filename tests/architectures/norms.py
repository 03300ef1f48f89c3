"""Convolutional models told apart by their norms, scales and weight parametrisations."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from .cnn import conv_bn, head
from .registry import architecture, floats, images


class GroupNormBlock(nn.Module):
    """A residual block with group norms."""

    def __init__(self, channels: int, groups: int = 4) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, channels)
        self.conv1 = nn.Conv2d(channels, channels * 2, 3, padding=1)
        self.norm2 = nn.GroupNorm(groups, channels * 2)
        self.conv2 = nn.Conv2d(channels * 2, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(y)))


@architecture("group_norm", images())
def group_norm() -> nn.Module:
    """Build a residual net with group norms."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), GroupNormBlock(16), GroupNormBlock(16), nn.GroupNorm(8, 16), head(16)
    )


@architecture("group_norm_single", images())
def group_norm_single() -> nn.Module:
    """Build a net with one group, a layer norm over channels and space."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.GroupNorm(1, 16),
        nn.ReLU(),
        nn.Conv2d(16, 24, 3),
        nn.GroupNorm(1, 24),
        head(24),
    )


def _instance_norm(affine: bool) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.InstanceNorm2d(16, affine=affine),
        nn.ReLU(),
        nn.Conv2d(16, 24, 3, 2, 1),
        nn.InstanceNorm2d(24, affine=affine, track_running_stats=affine),
        nn.ReLU(),
        nn.ConvTranspose2d(24, 16, 4, 2, 1),
        nn.InstanceNorm2d(16, affine=affine),
        nn.ReLU(),
        nn.Conv2d(16, 3, 3, padding=1),
        nn.Tanh(),
    )


@architecture("instance_norm_affine", images())
def instance_norm_affine() -> nn.Module:
    """Build a style net with affine instance norms."""
    return _instance_norm(True)


@architecture("instance_norm_plain", images())
def instance_norm_plain() -> nn.Module:
    """Build a style net whose instance norms hold nothing but a channel count."""
    return _instance_norm(False)


class DropPath(nn.Module):
    """Drops whole samples of a branch while training."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if self.rate == 0.0 or not self.training:
            return x
        keep = 1 - self.rate
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        return x * mask / keep


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, channels-last MLP and a layer scale."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1 = nn.Linear(dim, 4 * dim)
        self.act = nn.GELU()
        self.pwconv2 = nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(torch.ones(dim))
        self.drop_path = DropPath(0.1)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.dwconv(x).permute(0, 2, 3, 1)
        x = self.pwconv2(self.act(self.pwconv1(self.norm(x))))
        x = (self.gamma * x).permute(0, 3, 1, 2)
        return shortcut + self.drop_path(x)


class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of a map."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


@architecture("convnext", images())
class ConvNeXt(nn.Module):
    """Two stages and a norm before the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 2, 2), LayerNorm2d(16))
        self.stage1 = nn.Sequential(ConvNeXtBlock(16), ConvNeXtBlock(16))
        self.downsample = nn.Sequential(LayerNorm2d(16), nn.Conv2d(16, 32, 2, 2))
        self.stage2 = ConvNeXtBlock(32)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage2(self.downsample(self.stage1(self.stem(x))))
        return self.head(self.norm(x.mean([-2, -1])))


class GlobalResponseNorm(nn.Module):
    """ConvNeXt V2's norm, which sees all channels at once."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(1, 1, 1, dim))
        self.beta = nn.Parameter(torch.zeros(1, 1, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        gx = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        nx = gx / (gx.mean(dim=-1, keepdim=True) + 1e-6)
        return self.gamma * (x * nx) + self.beta + x


@architecture("convnext_v2", images())
class ConvNeXtV2(nn.Module):
    """A block with global response norm in its MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 2, 2)
        self.dwconv = nn.Conv2d(16, 16, 5, padding=2, groups=16)
        self.norm = nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), GlobalResponseNorm(64), nn.Linear(64, 16))
        self.head = head(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.mlp(self.norm(self.dwconv(x).permute(0, 2, 3, 1)))
        return self.head(x + y.permute(0, 3, 1, 2))


class Pooling(nn.Module):
    """A mixer without weights: the mean of the neighbours, less oneself."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(3, 1, 1, count_include_pad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x) - x


class PoolFormerBlock(nn.Module):
    """Pooling and an MLP of 1×1 convolutions, each with a layer scale."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(1, dim)
        self.token_mixer = Pooling()
        self.norm2 = nn.GroupNorm(1, dim)
        self.mlp = nn.Sequential(nn.Conv2d(dim, dim * 2, 1), nn.GELU(), nn.Conv2d(dim * 2, dim, 1))
        self.layer_scale_1 = nn.Parameter(torch.ones(dim))
        self.layer_scale_2 = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.layer_scale_1.unsqueeze(-1).unsqueeze(-1) * self.token_mixer(self.norm1(x))
        return x + self.layer_scale_2.unsqueeze(-1).unsqueeze(-1) * self.mlp(self.norm2(x))


@architecture("poolformer", images())
def poolformer() -> nn.Module:
    """Build two PoolFormer blocks."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 4), PoolFormerBlock(16), PoolFormerBlock(16), nn.GroupNorm(1, 16), head(16)
    )


@architecture("gated_residual", images())
class GatedResidual(nn.Module):
    """Mixes the branch and the shortcut by a learnt scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16)
        self.block1 = nn.Sequential(conv_bn(16, 32), nn.Conv2d(32, 16, 1))
        self.block2 = nn.Sequential(conv_bn(16, 32), nn.Conv2d(32, 16, 1))
        self.gate = nn.Parameter(torch.tensor(0.3))
        self.alpha = nn.Parameter(torch.zeros(1))
        self.head = head(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        gate = torch.sigmoid(self.gate)
        x = gate * self.block1(x) + (1 - gate) * x
        return self.head(x + self.alpha.tanh() * self.block2(x))


@architecture("weight_norm", images())
def weight_norm() -> nn.Module:
    """Build convolutions with parametrised weight norm."""
    normed = parametrizations.weight_norm
    return nn.Sequential(
        normed(nn.Conv2d(3, 16, 3, padding=1)), nn.ReLU(), normed(nn.Conv2d(16, 24, 3, padding=1)), nn.ReLU(), head(24)
    )


@architecture("spectral_norm", images())
def spectral_norm() -> nn.Module:
    """Build a discriminator with spectral norm, whose scale depends on the whole weight."""
    normed = parametrizations.spectral_norm
    return nn.Sequential(
        normed(nn.Conv2d(3, 16, 4, 2, 1)),
        nn.LeakyReLU(0.2),
        normed(nn.Conv2d(16, 24, 4, 2, 1)),
        nn.LeakyReLU(0.2),
        nn.Conv2d(24, 32, 3, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 1, 4),
    )


if hasattr(torch.nn.utils, "weight_norm"):

    @architecture("weight_norm_hooks", floats(2, 1, 64))
    def weight_norm_hooks() -> nn.Module:
        """Build convolutions with the hook-based weight norm of older code."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            first, second = (
                torch.nn.utils.weight_norm(layer)
                for layer in (nn.Conv1d(1, 16, 7, padding=3), nn.Conv1d(16, 24, 3, padding=1))
            )
        return nn.Sequential(
            first, nn.LeakyReLU(0.1), second, nn.LeakyReLU(0.1), nn.Conv1d(24, 1, 7, padding=3), nn.Tanh()
        )


class WeightStandardized(nn.Conv2d):
    """A convolution that standardises its weight over each filter."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        w = (w - w.mean(dim=(1, 2, 3), keepdim=True)) / (w.var(dim=(1, 2, 3), keepdim=True) + 1e-5).sqrt()
        return F.conv2d(x, w, self.bias, self.stride, self.padding, self.dilation, self.groups)


@architecture("weight_standardized", images())
def weight_standardized() -> nn.Module:
    """Build standardised convolutions and group norms, where a cut of inputs changes the weight's mean."""
    return nn.Sequential(
        WeightStandardized(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), WeightStandardized(16, 32, 3), head(32)
    )


@architecture("local_response_norm", images())
def local_response_norm() -> nn.Module:
    """Build AlexNet's norm across neighbouring channels."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.LocalResponseNorm(5), nn.Conv2d(16, 24, 3), nn.ReLU(), head(24)
    )


@architecture("layer_norm_map", images(3, 8))
def layer_norm_map() -> nn.Module:
    """Build a net with a layer norm over channels, rows and columns."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.LayerNorm([16, 8, 8]), nn.ReLU(), nn.Conv2d(16, 24, 3), nn.ReLU(), head(24)
    )
