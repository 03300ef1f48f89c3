"""Which numbers of channels a plan leaves: the defaults, and what was measured on the machine."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch
from torch import nn

import secateur
from secateur.bench.counts import CountCurve
from secateur.bench.machine import this_machine
from secateur.studies.machine.cached import save_cached
from secateur.studies.machine.hardware_report import HardwareReport
from secateur.studies.machine.machine_study import study_hardware
from tests.support.chains import after, mlp, rows
from tests.support.hardware_reports import TINY, FakeTimer, timing

COUNTS = (32, 33, 34, 36, 40, 48, 64)


def measured(multiple: int, penalty: float = 2.0) -> HardwareReport:
    """A machine on which counts off multiples of `multiple` cost `penalty` times as much."""
    report = study_hardware(dataclasses.replace(TINY, networks=()), FakeTimer())
    curves = []
    for kind in ("convolution", "linear", "depthwise"):
        power = 1 if kind == "depthwise" else 2
        costs = [(1 if n % multiple == 0 else penalty) * n**power * 1e-6 for n in COUNTS]
        timings = tuple(timing(cost / costs[0], 0.001, cost) for cost in costs)
        curves.append(CountCurve(kind, "eager", COUNTS, timings, timing(1.0)))
    return dataclasses.replace(report, counts=tuple(curves), machine=this_machine())


@pytest.mark.parametrize(("multiple", "left"), [(1, 45), (4, 44), (8, 48), (16, 48)])
def test_what_was_measured_here_decides_the_multiples(multiple: int, left: int) -> None:
    save_cached(measured(multiple))
    assert after(secateur.plan_channels(mlp(8, 64, 5), rows(8), 0.3)) == {"0": left}


def test_what_the_user_asks_for_comes_first() -> None:
    save_cached(measured(16, penalty=1.1))
    assert after(secateur.plan_channels(mlp(8, 64, 5), rows(8), 0.3, multiple_of=1)) == {"0": 45}


def test_a_cut_that_will_not_get_faster_is_warned_of() -> None:
    save_cached(measured(8, penalty=3.0))
    with pytest.warns(secateur.SecateurWarning, match=r"will not get faster: 0 \(64 → 45, about 2.11 × the time\)"):
        secateur.plan_channels(mlp(8, 64, 5), rows(8), 0.3, multiple_of=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", secateur.SecateurWarning)
        secateur.plan_channels(mlp(8, 64, 5), rows(8), 0.3)


def test_depthwise_channels_stay_on_multiples_of_4_however_few() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 12, 1), nn.Conv2d(12, 12, 3, groups=12), nn.ReLU(), nn.Conv2d(12, 5, 1), nn.Flatten()
    )
    inputs = torch.randn(2, 3, 8, 8)
    assert [after(secateur.plan_channels(model, inputs, amount))["0"] for amount in (0.25, 0.4, 0.6)] == [8, 8, 4]
