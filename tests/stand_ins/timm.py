"""Stands in for timm where it is not installed: a small ConvNeXt of the suite's own."""

from __future__ import annotations

from torch import nn

from tests.architectures.norms import ConvNeXt


def create_model(name: str, *, pretrained: bool = False) -> nn.Module:
    assert name == "convnext_tiny"
    model = ConvNeXt()
    model.head = nn.Linear(32, 1000)
    return nn.Sequential(nn.AvgPool2d(14), model)
