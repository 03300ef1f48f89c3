"""The page of a sweep: the data that `sweep.html.j2` shows."""

from __future__ import annotations

import json
from pathlib import Path

from secateur import __version__
from secateur.base import metric_text, moment_now
from secateur.pages.page import PAGE_FILE, link, save_page
from secateur.pages.sweep_chart import sweep_chart, view_by
from secateur.pages.sweep_points import axes_of, points_of
from secateur.studies import DENSE_RUN, LOG_FILE, Sweep


def save_sweep_page(found: Sweep, path: str | Path) -> None:
    """Runs with a page in the sweep's folder are linked to it, and those that failed to their log."""
    points = points_of(found, _links(found, PAGE_FILE, Path(path)))
    axes = axes_of(points, len(found.machines))
    views = [view_by(axis, points) for axis in axes]
    unbeaten = {axis.name: axis.frontier(points) for axis in axes}
    save_page(
        path,
        "sweep.html.j2",
        found=found,
        name=found.folder.resolve().name,
        points=points,
        views=views,
        picture=sweep_chart(views[0], points, found.metric),
        on_frontier=lambda point: [name for name, members in unbeaten.items() if point in members],
        untimed=[version.name for version in points.versions if version.timing is None],
        places=list(dict.fromkeys(item.title for item in found.measurements.values())),
        logs=_links(found, LOG_FILE, Path(path)),
        settings={name: _readable(value) for name, value in found.settings.items()},
        metric=lambda value: metric_text(found.metric, value),
        moment=moment_now(),
        version=__version__,
    )


def _readable(setting: str) -> str:
    """It is stored as JSON."""
    try:
        value = json.loads(setting)
    except ValueError:
        return setting
    return "–" if value is None else str(value)


def _links(found: Sweep, file: str, page: Path) -> dict[str, str]:
    """To a file in the runs' own folders, and in the dense model's, by name and where it is there."""
    files = {name: found.folder / name / file for name in (DENSE_RUN, *(run.name for run in found.runs))}
    return {name: link(path, page) for name, path in files.items() if path.is_file()}
