"""The evaluations of `sensitivity`, in memory and on disk, written after each: none is made twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from secateur.base import SecateurError, write_text

__all__ = ["SensitivityCache"]

_FORMAT = "secateur-sensitivity-cache"
_VERSION = 1

Point = tuple[float, float]


class SensitivityCache:
    """What is known of one model under one fingerprint; a file may hold several."""

    def __init__(self, file: Path | None, fingerprint: str) -> None:
        self._file = file
        self._entries: dict[str, Any] = _read(file) if file is not None and file.exists() else {}
        own = self._entries.setdefault(fingerprint, {"dense": None, "points": {}})
        self._own: dict[str, Any] = own

    @property
    def dense(self) -> float | None:
        return None if self._own["dense"] is None else float(self._own["dense"])

    @dense.setter
    def dense(self, metric: float) -> None:
        self._own["dense"] = metric
        self._write()

    def knows(self, group: str, amount: float) -> bool:
        return repr(amount) in self._own["points"].get(group, {})

    def point(self, group: str, amount: float) -> Point | None:
        """The share really removed and the metric then; None where the amount rounds to nothing."""
        stored = self._own["points"][group][repr(amount)]
        return None if stored is None else (float(stored[0]), float(stored[1]))

    def metric_at(self, group: str, share: float) -> float | None:
        """The metric with exactly this share removed, whichever amount asked for it."""
        known = self._own["points"].get(group, {}).values()
        return next((float(point[1]) for point in known if point is not None and point[0] == share), None)

    def add(self, group: str, amount: float, point: Point | None) -> None:
        self._own["points"].setdefault(group, {})[repr(amount)] = point
        self._write()

    def _write(self) -> None:
        if self._file is not None:
            write_text(self._file, json.dumps({"format": _FORMAT, "version": _VERSION, "entries": self._entries}))


def _read(file: Path) -> dict[str, Any]:
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["format"] != _FORMAT or stored["version"] != _VERSION:
            raise ValueError("it is of another kind or version")
        for own in stored["entries"].values():
            _check(own)
        return dict(stored["entries"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SecateurError(
            f"{file} does not hold evaluations that can be read ({error}); delete it, or choose another file."
        ) from error


def _check(own: Any) -> None:
    numbers = [] if own["dense"] is None else [own["dense"]]
    for points in own["points"].values():
        for amount, point in points.items():
            float(amount)
            if point is not None:
                share, metric = point
                numbers += [share, metric]
    if not all(isinstance(number, int | float) for number in numbers):
        raise ValueError("a number is something else")
