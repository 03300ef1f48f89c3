"""What a model costs, whole and at given shares of its groups, against the model that is really cut."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import nn

import secateur
from secateur.base.inputs import as_call, with_batch
from secateur.bench.size import count_macs, measure_size
from secateur.channels.costs import bytes_of, macs_of, parameters_of
from secateur.channels.dissection import dissect
from secateur.channels.select import Cuttable, plan_of, select
from secateur.couple import Bundle
from secateur.surgery.cutting import cut
from tests.architectures import ARCHITECTURES

CUTTABLE = [name for name, each in ARCHITECTURES.items() if each.cuttable]
NOT_COUNTED_BY_TORCH = {
    "spectral_norm": "its counter leaves out products of a matrix and a vector",
    "moe_top_k": "the data decides how many rows each expert of the cut model gets",
}


def random_units(bundles: Sequence[Bundle], seed: int) -> dict[Bundle, NDArray[np.int64]]:
    """For each bundle, the units that go."""
    generator = np.random.default_rng(seed)
    dead = {}
    for bundle in bundles:
        steps = int(generator.integers(1, bundle.steps // 2 + 1))  # of a single unit, torch makes no product
        lost = [generator.permutation(group.units)[: bundle.removed(group, steps)] for group in bundle.groups]
        dead[bundle] = np.concatenate(lost)
    return dead


def counted(name: str, model: nn.Module) -> list[int]:
    args, kwargs = as_call(with_batch(ARCHITECTURES[name].inputs(), 1))
    size = measure_size(model)
    macs = [] if name in NOT_COUNTED_BY_TORCH else [count_macs(model, *args, **kwargs)]
    return [size.parameters, size.file_bytes, *macs]


@pytest.mark.parametrize("name", CUTTABLE)
def test_costs_are_those_of_the_model_that_is_cut(name: str) -> None:
    model, inputs = ARCHITECTURES[name].build().eval(), ARCHITECTURES[name].inputs()
    dissection = dissect(model, inputs)
    costs = parameters_of(dissection, model), bytes_of(dissection, model), macs_of(dissection)
    expected = counted(name, model)
    assert [cost.total({}) for cost in costs][: len(expected)] == expected
    for seed in range(2):
        dead = random_units(dissection.bundles, seed)
        cuttable = Cuttable(tuple(dissection.bundles), {}, ())
        selection = select(dissection, cuttable, lambda bundles, dead=dead: np.concatenate([dead[b] for b in bundles]))
        smaller = copy.deepcopy(model)
        plan = plan_of(selection, dissection, model, "layer", "l1", inputs)
        cut(smaller, plan)
        expected = counted(name, smaller)
        assert plan.parameters[1] == expected[0]
        if plan.lists:  # experts of different widths: which of them go decides, and a share does not say that
            continue
        assert [cost.total(selection.shares) for cost in costs][: len(expected)] == expected


@pytest.mark.parametrize("name", CUTTABLE)
def test_multiply_adds_are_those_of_one_example_whatever_the_batch(name: str) -> None:
    model, inputs = ARCHITECTURES[name].build().eval(), with_batch(ARCHITECTURES[name].inputs(), 1)
    one, two, five = (secateur.inspect(model, with_batch(inputs, batch)) for batch in (1, 2, 5))
    assert one.macs > 0
    assert one == two == five, "what can be cut, and what it saves, are the same as well"
