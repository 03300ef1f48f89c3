"""`Sensitivity`: the metric against the share removed, for each group. Data: print it, save it, plan with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar

from secateur.base import (
    Count,
    FileFormat,
    Finite,
    Must,
    UsageError,
    aligned,
    did_you_mean,
    joined_lines,
    load_record,
    read_record,
    to_json,
    write_text,
)

_STEEPER = 2.0
"""Beyond the last amount a loss is taken to rise so many times as fast as it ever did before."""


Point = tuple[Finite, Finite]
"""A share of the units removed, and the metric then."""


def _shares_rise(points: tuple[Point, ...]) -> bool:
    return bool(points) and all(a < b for a, b in pairwise([0.0, *(share for share, _ in points), 1.0]))


@dataclass(frozen=True)
class CutGroup:
    """One group, or several that have to be cut together."""

    name: str
    """As plans print it; of several groups, that of the first."""
    key: str
    """The layer or parameter that `per_layer` names to cut this group and no other."""
    members: tuple[str, ...]
    """The names of all groups in it."""
    layers: tuple[str, ...]
    units: Count


@dataclass(frozen=True)
class GroupCurve(CutGroup):
    points: Annotated[tuple[Point, ...], Must(_shares_rise, "does not rise from 0 to 1")]

    def losses(self, dense: float) -> list[tuple[float, float]]:
        """From nothing removed on; never negative, and never less than at a smaller share."""
        worst, losses = 0.0, [(0.0, 0.0)]
        for share, metric in self.points:
            worst = max(worst, dense - metric)
            losses.append((share, worst))
        return losses


@dataclass(frozen=True)
class Sensitivity:
    """What `sensitivity` returns."""

    _file_format: ClassVar = FileFormat(
        "secateur-sensitivity", 1, "sensitivity file", "Sensitivity.to_json or Sensitivity.save"
    )

    metric: str
    dense: Finite
    """The metric of the model with nothing removed."""
    groups: tuple[GroupCurve, ...]
    score: str = "l1"

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError("it has no groups")

    @cached_property
    def _curves(self) -> dict[str, GroupCurve]:
        return {member: curve for curve in self.groups for member in curve.members}

    def __contains__(self, group: str) -> bool:
        return group in self._curves

    def __getitem__(self, group: str) -> GroupCurve:
        """By the name of any group that is cut with it."""
        if group not in self._curves:
            names = list(self._curves)
            hint = did_you_mean(group, names, f"groups are called, for example, {names[:3]}.")
            raise UsageError(f"There is no group {group!r}; {hint}")
        return self._curves[group]

    def loss(self, group: str, share: float) -> float:
        """What removing `share` of the group, and nothing else, costs of the metric. Straight lines between amounts."""
        if not 0 <= share <= 1:
            raise UsageError(f"share is {share!r}; give how much of the group goes, from 0 to 1.")
        losses = self[group].losses(self.dense)
        for (start, low), (end, high) in pairwise(losses):
            if share <= end:
                return low + (high - low) * (share - start) / (end - start)
        last, worst = losses[-1]
        steepest = max((high - low) / (end - start) for (start, low), (end, high) in pairwise(losses))
        all_lost = (abs(self.dense) or 1.0) / (1 - last)  # with nothing left, nothing of the metric is left either
        return worst + max(_STEEPER * steepest, all_lost) * (share - last)

    def amounts(self, max_loss: float) -> dict[str, float]:
        """For `per_layer`: the largest share of each group that by itself costs at most `max_loss` of the metric."""
        if not isinstance(max_loss, int | float) or not max_loss >= 0:
            raise UsageError(f"max_loss is {max_loss!r}; give how much of the metric a group may cost, such as 0.01.")
        return {curve.key: _largest_share(curve.losses(self.dense), max_loss) for curve in self.groups}

    def __str__(self) -> str:
        most = max(len(curve.points) for curve in self.groups)
        rows = [["group", "layers", "units", *[""] * most]]
        for curve in self.groups:
            points = [f"−{share:.0%}: {metric:.4f}" for share, metric in curve.points]
            rows.append([curve.name, str(len(curve.layers)), f"{curve.units:,}", *points, *[""] * (most - len(points))])
        head = f"{self.metric} with one group cut, the lowest {self.score} first; {self.dense:.4f} with nothing removed"
        return joined_lines([head, *aligned(rows, right=(1, 2))])

    def to_json(self) -> dict[str, Any]:
        return to_json(self)  # type: ignore[no-any-return]

    @staticmethod
    def from_json(stored: Any) -> Sensitivity:
        """What `to_json` made, checked."""
        return read_record(Sensitivity, stored)

    def save(self, path: str | Path) -> None:
        """Writes JSON; an older file stays intact until the new one is whole."""
        write_text(Path(path), json.dumps(self.to_json(), indent=2))

    @staticmethod
    def load(path: str | Path) -> Sensitivity:
        return load_record(Sensitivity, path)


def _largest_share(losses: Sequence[tuple[float, float]], max_loss: float) -> float:
    for (start, low), (end, high) in pairwise(losses):
        if high > max_loss:
            return start + (end - start) * (max_loss - low) / (high - low)
    return losses[-1][0]
