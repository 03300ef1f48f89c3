"""`plan_dead_channels`: what zeros have emptied goes, and the outputs stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from secateur.base import LeftAlone, UsageError, count_text, named, require_module, some_of, unwrap
from secateur.channels.budget import lowest_units
from secateur.channels.dissection import Dissection, dissect
from secateur.channels.given import Given
from secateur.channels.readings import Flags, Reading, find_readings
from secateur.channels.scores import ChannelScorer
from secateur.channels.select import NothingToCut, find_cuttable, plan_of, select
from secateur.couple import Bundle, Ids
from secateur.plans import Plan


def plan_dead_channels(
    model: nn.Module, example_inputs: Any, *, keep: Sequence[str | nn.Module] = (), outputs: Sequence[str] = ()
) -> Plan:
    """Plans the removal of the channels and heads that do nothing: the outputs stay the same, to rounding.

    Those are channels that nothing reads, because only zeros are multiplied with them, and channels that are constant
    whatever the input: what they add to a layer that reads them goes into its bias, or into the running mean of the
    batch norm behind it. All this holds in evaluation mode.

    Args:
        model: stays as it is; it has zeros, such as those of `plan_weights`.
        example_inputs: a tensor, a tuple of arguments, or a dict of keyword arguments.
        keep: layers that keep their channels: modules, or names of layers or parameters, with wildcards.
        outputs: those that count, by key, field or index; all others may lose channels. By default every output counts.

    Raises:
        NothingToCut: No channel is dead, or none that is can be cut.
    """
    require_module(model)
    module = unwrap(model)
    if any(parameter.device.type == "meta" for parameter in module.parameters()):
        raise UsageError("The model is on the meta device and has no zeros to go by; load its weights.")
    dissection = dissect(module, example_inputs, [str(each) for each in outputs])
    scorer = ChannelScorer(module, dissection, "l1", (), {})
    cuttable = find_cuttable(dissection, scorer, named("keep", keep, module), {}, Given())
    readings = find_readings(module, dissection, example_inputs)
    dead = _Dead(dissection, readings)
    if not len(dead.units(cuttable.bundles)):
        raise NothingToCut(_nothing(dead.staying()))
    selection = select(dissection, cuttable, dead.units)
    plan = plan_of(selection, dissection, module, "layer", "dead", example_inputs)
    left_alone = (*plan.left_alone, *dead.staying())
    return replace(plan, left_alone=left_alone, same_outputs=True, folded=_folded(readings, dissection, selection.dead))


class _Dead:
    """Finds the largest set of units that nothing outside of the set notices."""

    def __init__(self, dissection: Dissection, readings: Sequence[Reading]) -> None:
        self._dissection = dissection
        self._readings = readings

    def units(self, bundles: Sequence[Bundle]) -> Ids:
        """Those of the bundles: as many of each group as its bundle loses, and one stays."""
        candidates = np.concatenate([np.empty(0, np.int64), *(group.units for b in bundles for group in b.groups)])
        while True:
            dead = self._unnoticed(candidates)
            flags = np.isin(np.arange(self._dissection.coupling.units.count), dead)
            steps = {bundle: _steps(bundle, flags) for bundle in bundles}
            scores = {
                group.index: (~flags[group.units]).astype(np.float64) for bundle in bundles for group in bundle.groups
            }
            chosen = lowest_units(steps, scores)
            if len(chosen) == len(dead):
                return dead
            candidates = chosen  # what only those read that stay now is noticed again

    def _unnoticed(self, candidates: Ids) -> Ids:
        units = self._dissection.coupling.units
        dead = np.zeros(units.count, bool)
        dead[candidates] = True
        count = -1
        while count != (count := int(dead.sum())):
            for reading in reversed(self._readings):
                rows = units.resolve(reading.axis)
                noticed = (
                    reading.noticed if reading.outputs is None else reading.noticed[~self._gone(reading.outputs, dead)]
                )
                dead[rows[:, dead[rows].any(0) & noticed.any(0)]] = False
        return np.flatnonzero(dead)

    def _gone(self, axis: Any, dead: Flags) -> Flags:
        gone: Flags = np.any(dead[self._dissection.coupling.units.resolve(axis)], axis=0)
        return gone

    def staying(self) -> list[LeftAlone]:
        """The constant channels that cannot go, with the reason."""
        units, found = self._dissection.coupling.units, []
        for group in (group for bundle in self._dissection.bundles for group in bundle.groups):
            for reading in self._readings:
                if reading.constant is not None:
                    constant = np.isin(group.units, units.resolve(reading.axis)[:, reading.constant])
                    if constant.any():
                        what = count_text(int(constant.sum()), "channel")
                        found.append(LeftAlone(self._dissection.name(group), f"{what} constant, but {reading.reason}"))
        return found


def _steps(bundle: Bundle, dead: Flags) -> int:
    """How many steps the bundle can lose; one always stays."""
    lost = (int(dead[group.units].sum()) * bundle.steps // len(group) for group in bundle.groups)
    return min(bundle.steps - 1, *lost)


def _folded(readings: Sequence[Reading], dissection: Dissection, dead: Ids) -> dict[str, tuple[float, ...]] | None:
    """What the constant channels that go have added, by the bias or running mean that takes it over."""
    removal = dissection.removal(dead)
    folded: dict[str, tuple[float, ...]] = {}
    for reading in readings:
        if reading.taken is not None:
            added = reading.taken[:, ~removal.alive(reading.axis)].sum(1)
            if added.any():
                folded[reading.taker] = tuple(added.tolist())
    return folded or None


def _nothing(staying: Sequence[LeftAlone]) -> str:
    if not staying:
        return "No channel is dead: each depends on the input, and something that counts reads it."
    reasons = some_of([f"{item.name}: {item.reason}" for item in staying], between="; ")
    return f"No channel can go without a change of the outputs: {reasons}."
