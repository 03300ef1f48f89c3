"""MobileNetV2 (Sandler et al., 2018), in widths and depths of your choice: 1×1 and depthwise convolutions in turn."""

from __future__ import annotations

from torch import Tensor, nn

STRIDES = (1, 2, 2, 2, 1, 2, 1)
EXPANSION = 6


class InvertedResidual(nn.Module):
    """Widens with a 1×1 convolution, filters each channel alone, narrows again; a shortcut joins the narrow ends."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = expansion * inputs
        widen = _convolution(inputs, hidden, kernel=1) if expansion > 1 else []
        self.layers = nn.Sequential(
            *widen,
            *_convolution(hidden, hidden, kernel=3, stride=stride, groups=hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return x + out if self.has_shortcut else out


class MobileNetV2(nn.Module):
    def __init__(
        self,
        widths: tuple[int, ...] = (16, 24, 32, 64, 96, 160, 320),
        repeats: tuple[int, ...] = (1, 2, 3, 4, 3, 3, 1),
        classes: int = 1000,
    ) -> None:
        super().__init__()
        stem, last = 2 * widths[0], 4 * widths[-1]
        blocks, inputs = [], stem
        for i, (outputs, count, stride) in enumerate(zip(widths, repeats, STRIDES, strict=True)):
            for repeat in range(count):
                expansion = EXPANSION if i else 1
                blocks.append(InvertedResidual(inputs, outputs, stride if repeat == 0 else 1, expansion))
                inputs = outputs
        self.features = nn.Sequential(
            *_convolution(3, stem, kernel=3, stride=2), *blocks, *_convolution(inputs, last, kernel=1)
        )
        self.classifier = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    ]
