"""Which numbers of channels a plan leaves: the defaults, and what was measured on the machine."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import secateur
from tests.support.chains import after, cut_copy, mlp, rows
from tests.support.cutting import Heads
from tests.support.hardware_reports import save_measured


@pytest.mark.parametrize(("multiple", "left"), [(1, 45), (4, 44), (8, 48), (16, 48)])
def test_what_was_measured_here_decides_the_multiples(multiple: int, left: int) -> None:
    save_measured(multiple)
    assert after(secateur.plan_channels(mlp(8, 64, 5), rows(8), 0.3)) == {"0": left}


def test_what_the_user_asks_for_comes_first() -> None:
    save_measured(16, penalty=1.1)
    assert after(secateur.plan_channels(mlp(8, 64, 5), rows(8), 0.3, multiple_of=1)) == {"0": 45}


def test_a_cut_that_will_not_get_faster_is_warned_of() -> None:
    save_measured(8, penalty=3.0)
    with pytest.warns(secateur.SecateurWarning, match=r"faster: 0 \(64 → 45 channels, about 2.11 × the time\)"):
        secateur.plan_channels(mlp(8, 64, 5), rows(8), 0.3, multiple_of=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", secateur.SecateurWarning)
        secateur.plan_channels(mlp(8, 64, 5), rows(8), 0.3)


def test_heads_and_groups_of_a_norm_are_counted_in_channels() -> None:
    """Of 24 channels in 4 heads, 2 heads are 12 channels, which are a multiple of 4 though 2 is none."""
    save_measured(4, penalty=5.0)
    heads, sequence = Heads(), torch.randn(1, 7, 24)
    normed = nn.Sequential(nn.Conv2d(3, 64, 3), nn.GroupNorm(16, 64), nn.ReLU(), nn.Conv2d(64, 5, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", secateur.SecateurWarning)
        assert after(secateur.plan_channels(heads, sequence, 0.5)) == {"query": 2}
        assert "16 → 9  groups" in str(secateur.plan_channels(normed, torch.randn(1, 3, 8, 8), 0.44))
    with pytest.warns(secateur.SecateurWarning, match=r"query \(4 → 1 heads, 24 → 6 channels, about 1.25 × the time\)"):
        secateur.plan_channels(heads, sequence, 0.75)


def test_several_cuts_are_warned_of_as_one() -> None:
    save_measured(8, penalty=3.0)
    model = mlp(8, 64, 5)
    with pytest.warns(secateur.SecateurWarning, match="64 → 60"):
        first = secateur.plan_channels(model, rows(8), 4 / 64, multiple_of=1)
    with pytest.warns(secateur.SecateurWarning, match=r"64 → 45 channels, about 2.11 ×"):
        secateur.plan_channels(secateur.apply(model, first), rows(8), 0.3, multiple_of=1, previous=first)


def test_a_plan_says_that_the_study_of_the_machine_rounded_it() -> None:
    model = mlp(8, 64, 5)
    said = "rounded to multiples of 8, which `secateur hardware` found best"
    assert said not in str(secateur.plan_channels(model, rows(8), 0.3)), "nothing was measured yet"
    save_measured(8)
    for options in ({"amount": 0.3}, {"target": "macs=0.7"}):
        plan = secateur.plan_channels(model, rows(8), **options)
        assert said in str(plan)
        assert secateur.Plan.from_json(plan.to_json()) == plan
        assert said in str(plan.then(secateur.plan_channels(cut_copy(model, plan), rows(8), 1 / 6, multiple_of=8)))
    for options in ({"multiple_of": 8}, {"keep_indices": {"0": range(30)}}):
        assert said not in str(secateur.plan_channels(model, rows(8), 0.5, **options))


def test_depthwise_channels_stay_on_multiples_of_4_however_few() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 12, 1), nn.Conv2d(12, 12, 3, groups=12), nn.ReLU(), nn.Conv2d(12, 5, 1), nn.Flatten()
    )
    inputs = torch.randn(2, 3, 8, 8)
    assert [after(secateur.plan_channels(model, inputs, amount))["0"] for amount in (0.25, 0.4, 0.6)] == [8, 8, 4]
