"""The models of `plan_speed.py`: three written out here, transformers by their library's configs, the rest of timm.

All weights are random: neither finding the coupled channels nor cutting them depends on what the weights are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["SUBJECTS", "Subject", "llama_1b_on_meta"]


class Bottleneck(nn.Module):
    """1×1 to fewer channels, 3×3, and 1×1 to four times as many, around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.relu(self.norm2(self.conv2(out)))
        return self.relu(self.norm3(self.conv3(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """The residual network of He et al. with bottleneck blocks; (3, 4, 6, 3) blocks make ResNet-50."""

    def __init__(self, blocks: tuple[int, ...], classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
        )
        channels, stages = 64, []
        for stage, count in enumerate(blocks):
            width = 64 * 2**stage
            layers = []
            for block in range(count):
                layers.append(Bottleneck(channels, width, 2 if stage > 0 and block == 0 else 1))
                channels = 4 * width
            stages.append(nn.Sequential(*layers))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.stages(self.stem(x))).flatten(1))


class DenseLayer(nn.Module):
    """Computes `growth` channels from all that came before, and passes both on."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
        self.relu = nn.ReLU()

    def forward(self, earlier: list[Tensor]) -> Tensor:
        out = self.conv1(self.relu(self.norm1(torch.cat(earlier, 1))))
        return self.conv2(self.relu(self.norm2(out)))


class DenseBlock(nn.Module):
    def __init__(self, inputs: int, layers: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DenseLayer(inputs + i * growth, growth) for i in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    """The densely connected network of Huang et al.: (6, 12, 24, 16) layers make 121, (6, 12, 48, 32) make 201."""

    def __init__(self, blocks: tuple[int, ...], growth: int = 32, classes: int = 1000) -> None:
        super().__init__()
        channels = 2 * growth
        parts: list[nn.Module] = [
            nn.Conv2d(3, channels, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
        ]
        for i, layers in enumerate(blocks):
            parts.append(DenseBlock(channels, layers, growth))
            channels += layers * growth
            parts += [nn.BatchNorm2d(channels), nn.ReLU()]
            if i < len(blocks) - 1:
                parts += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
                channels //= 2
        self.features = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1))
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


def vit_base() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    model: nn.Module = ViTForImageClassification(ViTConfig(num_labels=1000))
    return model


def bert(layers: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    model: nn.Module = BertForSequenceClassification(BertConfig(num_hidden_layers=layers))
    return model


def llama_1b_on_meta() -> tuple[nn.Module, dict[str, Tensor]]:
    """A LLaMA of 1.1 billion parameters in the shape of TinyLlama, and its inputs; neither takes any memory."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        use_cache=False,
    )
    with torch.device("meta"):
        return LlamaForCausalLM(config).eval(), {"input_ids": torch.zeros(1, 16, dtype=torch.long)}


def of_timm(name: str) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(name)
    return model


def image() -> Tensor:
    return torch.randn(1, 3, 224, 224)


def pixels() -> dict[str, Tensor]:
    return {"pixel_values": image()}


def sentence() -> dict[str, Tensor]:
    return {"input_ids": torch.arange(1000, 1064).view(1, 64), "attention_mask": torch.ones(1, 64, dtype=torch.long)}


@dataclass(frozen=True)
class Subject:
    """A model to prune, and the example inputs that both libraries get."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    library: str | None = None
    """The package that has the model, if it is not written out here."""
    torch_pruning_repeats: int | None = None
    """Fewer repeats for torch-pruning where it takes long."""


# torch-pruning fails on the last four.
OF_TIMM = """mobilenetv2_100 mobilenetv3_large_100 lcnet_100 ghostnet_100 regnety_004 efficientnet_b0 mnasnet_100
    resnet18 resnet34 resnext50_32x4d vgg16 inception_v3 convnext_tiny repvgg_a0 hrnet_w18_small dla34
    deit_tiny_patch16_224 swin_tiny_patch4_window7_224 mixer_b16_224 poolformer_s12""".split()


def subject_of_timm(name: str) -> Subject:
    return Subject(name, lambda: of_timm(name), image, library="timm")


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("resnet-50", lambda: ResNet((3, 4, 6, 3)), image),
        Subject("densenet-121", lambda: DenseNet((6, 12, 24, 16)), image),
        Subject("densenet-201", lambda: DenseNet((6, 12, 48, 32)), image, torch_pruning_repeats=2),
        Subject("vit-b16", vit_base, pixels, library="transformers"),
        Subject("bert-12", lambda: bert(12), sentence, library="transformers"),
        Subject("bert-48", lambda: bert(48), sentence, library="transformers"),
        *map(subject_of_timm, OF_TIMM),
    )
}
