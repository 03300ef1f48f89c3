"""Runs that remove channels from a small network, for the tests of the loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import secateur
from tests.support.models import ConvNet

Loaders = dict[str, DataLoader]
QUICK = secateur.Recipe(lr=3e-3)
DISTILLED = secateur.Recipe(lr=3e-3, distill=0.5)


def prune(model: nn.Module, channels: Any = 0.5, **options: Any) -> secateur.Result:
    settings = {"recipe": QUICK, "progress": False, "repair": 0, "finetune": 1, **options}
    return secateur.prune(model, channels=channels, **settings)


def widths(model: nn.Module) -> tuple[int, int, int]:
    assert isinstance(model, ConvNet)
    assert model.hidden.in_features == 16 * model.conv.out_channels
    assert model.norm.num_features == model.conv.out_channels
    assert model.output.in_features == model.hidden.out_features
    return model.conv.out_channels, model.hidden.out_features, model.output.out_features


def counts(result: secateur.Result) -> dict[str, tuple[int, int]]:
    assert result.plan is not None
    return {group.name: (group.before, group.after) for group in result.plan.groups}


def assert_same(result: secateur.Result, expected: secateur.Result) -> None:
    assert result.plan == expected.plan
    assert [record.metric for record in result.records] == [record.metric for record in expected.records]
    assert [record.size for record in result.records] == [record.size for record in expected.records]
    assert list(result.model.state_dict()) == list(expected.model.state_dict())
    for name, value in expected.model.state_dict().items():
        assert torch.equal(result.model.state_dict()[name], value), name
