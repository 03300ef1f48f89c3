"""The histogram of a dense model's weights, against counts made one by one."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import secateur
from secateur.base.errors import UsageError
from secateur.loop.histogram import weight_histogram
from secateur.plans.masks import LayerMask, Masks
from tests.support.models import ConvNet
from tests.support.report_runs import EXAMPLE, trained


def counted(values: np.ndarray, edges: tuple[float, ...]) -> list[int]:
    """Bin by bin, by comparison."""
    last = len(edges) - 2
    return [
        int(((low <= values) & ((values <= high) if i == last else (values < high))).sum())
        for i, (low, high) in enumerate(pairwise(edges))
    ]


@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3, width=32), st.booleans()), min_size=6, max_size=6),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_every_weight_is_counted_once_where_it_belongs(cells: list[tuple[float, bool]], dtype: torch.dtype) -> None:
    model = nn.Linear(3, 2).to(dtype)
    model.weight.data = torch.tensor([value for value, _ in cells], dtype=dtype).view(2, 3)
    gone = torch.tensor([removed for _, removed in cells]).view(2, 3)
    found = weight_histogram(model, Masks({"weight": LayerMask.pack(gone)}))
    magnitudes = model.weight.detach().double().abs().numpy()
    assert len(found.edges) == 81
    assert list(found.kept) == counted(magnitudes[~gone.numpy()], found.edges)
    assert list(found.removed) == counted(magnitudes[gone.numpy()], found.edges)
    assert sum(found.kept) + sum(found.removed) == 6
    clean = gone.any() and (not (~gone).any() or magnitudes[gone].max() <= magnitudes[~gone].min())
    assert math.isnan(found.threshold) == (not clean)
    assert clean == (found.no_threshold == "")
    assert not clean or found.threshold == magnitudes[gone].max()


def test_a_global_cut_has_one_threshold(convnet: ConvNet) -> None:
    masks = secateur.plan_weights(convnet, 0.7)
    found = weight_histogram(convnet, masks)
    assert sum(found.removed) == masks.zeros
    assert sum(found.kept) == masks.weights - masks.zeros
    every = torch.cat([convnet.get_parameter(name).detach().flatten() for name in masks.layers]).abs()
    assert found.threshold == pytest.approx(float(every.sort().values[masks.zeros - 1]))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"amount": 0.5, "scope": "layer"}, "Every layer was ranked on its own"),
        ({"pattern": "2:4"}, "The pattern 2:4"),
        ({"amount": 0.5, "score": "random"}, "The score random"),
        ({"amount": 0.5, "per_layer": {"conv": 0.9}}, "amounts of their own"),
        ({"amount": 0.0}, "Nothing was removed"),
    ],
)
def test_other_cuts_have_none_and_say_why(options: dict[str, Any], reason: str, convnet: ConvNet) -> None:
    found = weight_histogram(convnet, secateur.plan_weights(convnet, **options))
    assert math.isnan(found.threshold)
    assert reason in found.no_threshold


def test_weights_in_removed_channels_are_removed() -> None:
    model = trained().model
    plan = secateur.plan_channels(model, EXAMPLE, 0.4)
    found = weight_histogram(model, plan)
    left = secateur.apply(copy.deepcopy(model), plan)
    weights = {name: value for name, value in left.named_parameters() if value.ndim > 1}
    assert sum(found.kept) == sum(value.numel() for value in weights.values())
    assert sum(found.removed) == sum(p.numel() for p in model.parameters() if p.ndim > 1) - sum(found.kept)
    kept = np.concatenate([value.detach().double().abs().flatten().numpy() for value in weights.values()])
    assert list(found.kept) == counted(kept, found.edges), "the cut model holds exactly the weights that were kept"
    assert "Whole channels went" in found.no_threshold


def test_a_cut_of_another_model_is_refused(convnet: ConvNet) -> None:
    for other in (nn.Linear(3, 2), nn.Sequential(nn.Conv2d(4, 9, 3))):
        with pytest.raises(UsageError, match="The cut was made for another model"):
            weight_histogram(other, secateur.plan_channels(convnet, torch.randn(1, 4, 4, 4), 0.5))
    masks = secateur.plan_weights(convnet, 0.5)
    convnet.conv.weight.data[0, 0, 0, 0] = math.nan
    with pytest.raises(UsageError, match="NaN or Inf"):
        weight_histogram(convnet, masks)
