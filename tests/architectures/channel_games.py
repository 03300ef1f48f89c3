"""Models that split, permute, fold and index their channels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cnn import conv_bn, head
from .registry import architecture, images


@architecture("permute_flatten_linear", images(3, 8))
class PermuteFlatten(nn.Module):
    """Flattens with the channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv_bn(3, 16), nn.MaxPool2d(2), conv_bn(16, 24))
        self.fc1 = nn.Linear(4 * 4 * 24, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).permute(0, 2, 3, 1)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


@architecture("transpose_reshape_linear", images(3, 8))
class TransposeReshape(nn.Module):
    """Keeps rows apart and folds columns with channels, as text recognisers do."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv_bn(3, 16), conv_bn(16, 24, 3, 2))
        self.fc = nn.Linear(24 * 4, 32)
        self.out = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        b, c, h, w = x.shape
        x = x.permute(0, 3, 1, 2).reshape(b, w, c * h)
        return self.out(F.relu(self.fc(x)))


@architecture("strided_slices", images())
class StridedSlices(nn.Module):
    """Sends even and odd channels different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 32)
        self.even = conv_bn(16, 16)
        self.odd = conv_bn(16, 24)
        self.head = head(40)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(torch.cat([self.even(x[:, ::2]), self.odd(x[:, 1::2])], 1))


@architecture("slice_halves", images())
class SliceHalves(nn.Module):
    """Slices at half the width it finds, and multiplies the halves."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 32)
        self.conv = conv_bn(16, 24)
        self.head = head(24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        half = x.shape[1] // 2
        return self.head(self.conv(x[:, :half] * torch.sigmoid(x[:, half:])))


@architecture("slice_two_readers", images())
class SliceTwoReaders(nn.Module):
    """Reads overlapping slices of one layer with literal bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 32)
        self.left = conv_bn(20, 16)
        self.right = conv_bn(20, 16)
        self.head = head(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.left(x[:, :20]) + self.right(x[:, 12:]))


@architecture("split_attributes", images())
class SplitAttributes(nn.Module):
    """Splits unequally by sizes held as attributes."""

    def __init__(self, wide: int = 24, narrow: int = 8) -> None:
        super().__init__()
        self.wide = wide
        self.narrow = narrow
        self.stem = conv_bn(3, wide + narrow)
        self.conv_wide = conv_bn(wide, 16)
        self.conv_narrow = conv_bn(narrow, 16)
        self.head = head(32)

    def forward(self, x: Tensor) -> Tensor:
        a, b = torch.split(self.stem(x), [self.wide, self.narrow], dim=1)
        return self.head(torch.cat([self.conv_wide(a), self.conv_narrow(b)], 1))


@architecture("split_literals", images())
class SplitLiterals(nn.Module):
    """Splits unequally by literals, so that the split layer keeps its width."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 32)
        self.conv_a = conv_bn(8, 16)
        self.conv_b = conv_bn(24, 16)
        self.head = head(16)

    def forward(self, x: Tensor) -> Tensor:
        a, b = torch.split(self.stem(x), [8, 24], dim=1)
        return self.head(self.conv_a(a) + self.conv_b(b))


class PartialConv(nn.Module):
    """FasterNet's: only the first quarter is convolved."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dim_conv = channels // 4
        self.dim_untouched = channels - self.dim_conv
        self.partial_conv = nn.Conv2d(self.dim_conv, self.dim_conv, 3, padding=1, bias=False)
        self.mlp = nn.Sequential(conv_bn(channels, channels * 2, 1), nn.Conv2d(channels * 2, channels, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = torch.split(x, [self.dim_conv, self.dim_untouched], dim=1)
        return x + self.mlp(torch.cat((self.partial_conv(x1), x2), 1))


@architecture("partial_conv", images())
def partial_conv() -> nn.Module:
    """Build FasterNet blocks."""
    return nn.Sequential(conv_bn(3, 32), PartialConv(32), PartialConv(32), head(32))


@architecture("roll_channels", images())
class RollChannels(nn.Module):
    """Rolls the channels by a quarter before the next layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 16)
        self.conv2 = conv_bn(16, 16)
        self.head = head(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        return self.head(self.conv2(torch.roll(x, shifts=4, dims=1)))


@architecture("roll_residual", images())
class RollResidual(nn.Module):
    """Adds a layer to a rolled copy of itself, which ties channels around a ring."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 16)
        self.conv2 = conv_bn(16, 24)
        self.head = head(24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        return self.head(self.conv2(x + torch.roll(x, 8, 1)))


@architecture("flip_channels", images())
class FlipChannels(nn.Module):
    """Joins a layer with its mirror image."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 16)
        self.conv2 = conv_bn(32, 16)
        self.head = head(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        return self.head(self.conv2(torch.cat([x, x.flip(1)], 1)))


@architecture("index_select_channels", images())
class IndexSelect(nn.Module):
    """Permutes channels by a buffer of indices."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 16)
        self.conv2 = conv_bn(16, 24)
        self.head = head(24)
        self.register_buffer("permutation", torch.randperm(16))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.index_select(self.conv1(x), 1, self.permutation)
        return self.head(self.conv2(x))


@architecture("stack_flatten", images())
class StackFlatten(nn.Module):
    """Stacks two branches and folds the stack into interleaved channels."""

    def __init__(self) -> None:
        super().__init__()
        self.a = conv_bn(3, 16)
        self.b = conv_bn(3, 16)
        self.conv = conv_bn(32, 16)
        self.head = head(16)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.stack([self.a(x), self.b(x)], dim=2).flatten(1, 2)
        return self.head(self.conv(x))


@architecture("glu_conv", images())
class GLUConv(nn.Module):
    """Gates one half of a convolution by the other."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16)
        self.conv = nn.Conv2d(16, 48, 3, padding=1)
        self.norm = nn.BatchNorm2d(24)
        self.head = head(24)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(F.glu(self.conv(self.stem(x)), dim=1)))


@architecture("maxout", images())
class Maxout(nn.Module):
    """Takes the maximum over pairs of channels."""

    def __init__(self, pieces: int = 2) -> None:
        super().__init__()
        self.pieces = pieces
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 48, 3, padding=1)
        self.head = head(24)

    def maxout(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        return x.view(b, c // self.pieces, self.pieces, h, w).max(dim=2)[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.maxout(self.conv2(self.maxout(self.conv1(x)))))


@architecture("prelu", images())
def prelu() -> nn.Module:
    """Build convolutions with a slope for each channel."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.PReLU(16),
        nn.Conv2d(16, 24, 3, padding=1),
        nn.PReLU(24),
        nn.PReLU(),
        head(24),
    )


@architecture("crelu", images())
class CReLU(nn.Module):
    """Joins a layer with its negative."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 24, 3, padding=1)
        self.head = head(24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        x = F.relu(torch.cat([x, -x], dim=1))
        return self.head(F.relu(self.conv2(x)))


@architecture("repeat_channels", images())
class RepeatChannels(nn.Module):
    """Repeats channels in a tile for one reader and side by side for another."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16)
        self.tiled = conv_bn(32, 16)
        self.beside = conv_bn(32, 16)
        self.head = head(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.tiled(x.repeat(1, 2, 1, 1)) + self.beside(x.repeat_interleave(2, dim=1)))


@architecture("pixel_shuffle", images(3, 8))
class SuperResolution(nn.Module):
    """Upsamples by folding channels into space."""

    def __init__(self, scale: int = 2) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 24, 5, padding=2)
        self.conv2 = nn.Conv2d(24, 16 * scale**2, 3, padding=1)
        self.middle = nn.PixelShuffle(scale)
        self.conv3 = nn.Conv2d(16, 3 * scale**2, 3, padding=1)
        self.last = nn.PixelShuffle(scale)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.middle(self.conv2(F.relu(self.conv1(x)))))
        return self.last(self.conv3(x))


@architecture("pixel_unshuffle", images())
class UnshuffleStem(nn.Module):
    """Folds space into channels, of the image and of a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.PixelUnshuffle(2)
        self.conv1 = conv_bn(12, 16)
        self.conv2 = conv_bn(64, 24)
        self.head = head(24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(self.stem(x))
        return self.head(self.conv2(F.pixel_unshuffle(x, 2)))


@architecture("focus_slices", images())
class FocusStem(nn.Module):
    """YOLOv5's focus: four spatial phases joined as channels."""

    def __init__(self) -> None:
        super().__init__()
        self.pre = conv_bn(3, 8)
        self.conv = conv_bn(32, 16)
        self.head = head(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pre(x)
        phases = (x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2])
        return self.head(self.conv(torch.cat(phases, 1)))


@architecture("unfold_patches", images(3, 8))
class UnfoldConv(nn.Module):
    """A convolution written as unfolded patches and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv_bn(3, 16)
        self.linear = nn.Linear(16 * 3 * 3, 24)
        self.out = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = F.unfold(self.conv(x), kernel_size=3, padding=1, stride=2)
        x = F.relu(self.linear(patches.transpose(1, 2)))
        return self.out(x.mean(1))


@architecture("coordconv", images())
class CoordConv(nn.Module):
    """Joins coordinate maps to the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3 + 2, 16)
        self.conv2 = conv_bn(16 + 2, 24)
        self.head = head(24)

    @staticmethod
    def with_coordinates(x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        ys = torch.linspace(-1, 1, h, device=x.device, dtype=x.dtype).view(1, 1, h, 1).expand(b, 1, h, w)
        xs = torch.linspace(-1, 1, w, device=x.device, dtype=x.dtype).view(1, 1, 1, w).expand(b, 1, h, w)
        return torch.cat([x, xs, ys], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv2(self.with_coordinates(self.conv1(self.with_coordinates(x)))))
