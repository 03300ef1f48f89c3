"""What the caller knows better than any score: a number for each channel, or the very channels that stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from secateur.base import UsageError, matches_any, require_known
from secateur.channels.budget import ScoresByGroup
from secateur.channels.dissection import Dissection
from secateur.couple import Bundle, Group, Member


@dataclass(frozen=True)
class Given:
    scores: ScoresByGroup = field(default_factory=dict)
    """For the groups of which something was said. Where the channels were named, 1 for those that stay and 0 else."""
    steps: Mapping[Bundle, int] = field(default_factory=dict)
    """How many steps a bundle loses, where the channels that stay were named."""
    layers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By option, the layers that were named."""

    def require(self, bundles: Sequence[Bundle], dissection: Dissection) -> None:
        """That the bundles of which channels were named can still be cut."""
        for bundle in self.steps:
            if bundle not in bundles:
                name = dissection.name(bundle.groups[0])
                raise UsageError(
                    f"keep_indices cuts {name}, but keep or the sizes in the code forbid it; leave it out."
                )


def find_given(dissection: Dissection, score: Any, keep_indices: Mapping[str, Sequence[int]] | None) -> Given:
    """`score` counts if it is a mapping."""
    scores = _numbers("score", score, dissection) if isinstance(score, Mapping) else {}
    kept = _numbers("keep_indices", keep_indices or {}, dissection)
    summed: dict[int, NDArray[np.float64]] = {}
    for name, numbers in scores.items():
        for group, member in _made_by(name, dissection):
            own = dissection.sum_by_unit(group, member, _one_for_each(name, numbers, member))
            summed[group.index] = summed.get(group.index, 0) + own
    alive = _alive(kept, dissection)
    _require_all_covered(kept, alive, dissection)
    steps = {bundle: lost for bundle in dissection.bundles if (lost := _steps(bundle, alive, dissection)) is not None}
    flags = {group.index: stays.astype(np.float64) for group, stays in alive.items()}
    return Given({**summed, **flags}, steps, {"score": list(scores), "keep_indices": list(kept)})


def _numbers(option: str, given: Any, dissection: Dissection) -> dict[str, NDArray[np.float64]]:
    if not isinstance(given, Mapping):
        raise UsageError(f"{option} is {given!r}; give a dict such as {{'conv1': [0, 3, 5]}}.")
    require_known(option, given, dissection.parameter_names)
    found = {}
    for name, numbers in given.items():
        try:
            found[name] = torch.as_tensor(numbers).detach().cpu().double().numpy()
        except (TypeError, ValueError, RuntimeError):
            found[name] = np.full(1, np.nan)
        if found[name].ndim != 1 or not np.isfinite(found[name]).all():
            raise UsageError(f"{option} of {name!r} is no list of finite numbers; give one row of them.")
    return found


def _made_by(name: str, dissection: Dissection) -> Iterator[tuple[Group, Member]]:
    """The groups whose channels the layer makes, and the weight and axis that it makes them with."""
    for bundle in dissection.bundles:
        for group in bundle.groups:
            yield from ((group, m) for m in dissection.producers(group) if matches_any([name], m.leaf.names))


def _one_for_each(name: str, numbers: NDArray[np.float64], member: Member) -> NDArray[np.float64]:
    width = member.leaf.shape[member.axis]
    if len(numbers) != width:
        raise UsageError(
            f"score gives {name!r} {len(numbers)} numbers, but it has {width} channels; give one for each."
        )
    return numbers


def _stays(name: str, indices: NDArray[np.float64], member: Member) -> NDArray[np.bool_]:
    """A flag for each channel of the layer."""
    width = member.leaf.shape[member.axis]
    whole = indices.astype(np.int64)
    if not len(whole) or (whole != indices).any() or whole.min() < 0 or whole.max() >= width:
        raise UsageError(
            f"keep_indices of {name!r} has to name at least one of its channels by whole numbers from 0 to {width - 1}."
        )
    flags = np.zeros(width, bool)
    flags[whole] = True
    return flags


def _alive(kept: Mapping[str, NDArray[np.float64]], dissection: Dissection) -> dict[Group, NDArray[np.bool_]]:
    """For the groups of the named layers, which of their units stay."""
    alive: dict[Group, NDArray[np.bool_]] = {}
    said_by: dict[Group, str] = {}
    for name, indices in kept.items():
        for group, member in _made_by(name, dissection):
            flags = _stays(name, indices, member)
            stay, go = (dissection.sum_by_unit(group, member, each.astype(np.float64)) > 0 for each in (flags, ~flags))
            if (stay & go).any():
                raise UsageError(
                    f"keep_indices keeps a part of channels of {name!r} that go together; keep all of them or none."
                )
            if group in alive and (alive[group] != stay).any():
                raise UsageError(
                    f"keep_indices keeps other channels of {name!r} than of {said_by[group]!r}, but the two are "
                    "coupled; name one of them, or the same channels."
                )
            alive[group], said_by[group] = stay, name
    return alive


def _require_all_covered(
    kept: Mapping[str, NDArray[np.float64]], alive: Mapping[Group, NDArray[np.bool_]], dissection: Dissection
) -> None:
    """That the channels that are to go are gone once the units are."""
    dead = [group.units[~stays] for group, stays in alive.items()]
    removal = dissection.removal(np.concatenate([np.empty(0, np.int64), *dead]))
    for name, indices in kept.items():
        for _, member in _made_by(name, dissection):
            left = removal.alive(dissection.coupling.axes(member.leaf)[member.axis])
            for channel in np.flatnonzero(left & ~_stays(name, indices, member)):
                raise UsageError(
                    f"keep_indices leaves out channel {channel} of {name!r}, which cannot be cut; keep it."
                )


def _steps(bundle: Bundle, alive: Mapping[Group, NDArray[np.bool_]], dissection: Dissection) -> int | None:
    """How many steps the bundle loses; None where nothing was said of it."""
    lost = {group: int((~alive[group]).sum()) for group in bundle.groups if group in alive}
    steps = {dead * bundle.steps / len(group) for group, dead in lost.items()}
    if len(steps) > 1 or any(not each.is_integer() for each in steps):
        names = ", ".join(dissection.name(group) for group in bundle.groups)
        raise UsageError(
            f"keep_indices does not keep the same share of {names}, which are cut together; take away whole parts of "
            f"{bundle.steps} equal ones of each."
        )
    return int(steps.pop()) if steps else None
