"""The evaluations of `sensitivity`, in memory and on disk, written after each: none is made twice."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from secateur.base import FileFormat, SecateurError, from_json, read_json, to_json, write_text

Point = tuple[float, float]


@dataclass
class _Known:
    """Of one model: its metric, and the points of each group by the amounts that were asked for."""

    dense: float | None = None
    points: dict[str, dict[float, Point | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Evaluations:
    _file_format: ClassVar = FileFormat("secateur-sensitivity-cache", 1, "file of evaluations", "secateur.sensitivity")

    entries: dict[str, _Known]


class SensitivityCache:
    """What is known of one model under one fingerprint; a file may hold several."""

    def __init__(self, file: Path | None, fingerprint: str) -> None:
        self._file = file
        self._all = _read(file) if file is not None and file.exists() else _Evaluations({})
        self._own = self._all.entries.setdefault(fingerprint, _Known())

    @property
    def dense(self) -> float | None:
        return self._own.dense

    @dense.setter
    def dense(self, metric: float) -> None:
        self._own.dense = metric
        self._write()

    def knows(self, group: str, amount: float) -> bool:
        return amount in self._own.points.get(group, {})

    def point(self, group: str, amount: float) -> Point | None:
        """The share really removed and the metric then; None where the amount rounds to nothing."""
        return self._own.points[group][amount]

    def metric_at(self, group: str, share: float) -> float | None:
        """The metric with exactly this share removed, whichever amount asked for it."""
        known = self._own.points.get(group, {}).values()
        return next((point[1] for point in known if point is not None and point[0] == share), None)

    def add(self, group: str, amount: float, point: Point | None) -> None:
        self._own.points.setdefault(group, {})[amount] = point
        self._write()

    def _write(self) -> None:
        if self._file is not None:
            write_text(self._file, json.dumps(to_json(self._all)))


def _read(file: Path) -> _Evaluations:
    try:
        return from_json(_Evaluations, read_json(file))
    except (OSError, ValueError, SecateurError) as error:
        raise SecateurError(
            f"{file} does not hold evaluations that can be read ({error}); delete it, or choose another file."
        ) from error
