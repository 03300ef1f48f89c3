"""What a model costs at given shares of its groups, against counting what is left of it."""

from __future__ import annotations

import numpy as np
import pytest

from secateur.channels.costs import bytes_of, macs_of, parameters_of
from secateur.channels.dissection import Dissection, dissect
from tests.architectures import ARCHITECTURES


def random_cut(dissection: Dissection, seed: int) -> tuple[dict[int, float], np.ndarray]:
    """Shares left, by group, and units that leave just these."""
    generator = np.random.default_rng(seed)
    shares, dead = {}, [np.empty(0, np.int64)]
    for bundle in dissection.bundles:
        steps = int(generator.integers(0, bundle.steps))
        for group in bundle.groups:
            shares[group.index] = 1 - steps / bundle.steps
            dead.append(generator.permutation(group.units)[: bundle.removed(group, steps)])
    return shares, np.concatenate(dead)


@pytest.mark.parametrize("name", [name for name, each in ARCHITECTURES.items() if each.cuttable])
def test_costs_are_those_of_what_is_left(name: str) -> None:
    model, inputs = ARCHITECTURES[name].build().eval(), ARCHITECTURES[name].inputs()
    dissection = dissect(model, inputs)
    parameters, macs, size = parameters_of(dissection, model), macs_of(dissection), bytes_of(dissection, model)
    assert parameters.total({}) == sum(parameter.numel() for parameter in model.parameters())
    assert size.total({}) == sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    assert macs.total({}) == dissection.macs
    for seed in range(3):
        shares, dead = random_cut(dissection, seed)
        removal = dissection.removal(dead)
        removed = dissection.parameters_of(dissection.leaves) - dissection.parameters_left(removal, dissection.leaves)
        assert parameters.total({}) - parameters.total(shares) == removed
        assert macs.total(shares) == dissection.macs_left(removal)
