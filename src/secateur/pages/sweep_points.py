"""What the page of a sweep shows of its versions, their runs and the dense model, and the costs to draw them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from secateur.base import milliseconds
from secateur.bench import Timing
from secateur.pages.overlay_page import frontier
from secateur.studies import DENSE_RUN, Costs, Sweep, SweptRun


@dataclass(frozen=True)
class Point:
    """A version; or a run, which is shown like a version with one seed; or the dense model, which has none."""

    name: str
    seeds: tuple[int, ...]
    metrics: tuple[float, ...]
    costs: Costs
    """Means, as is `nonzeros`."""
    nonzeros: float
    timing: Timing | None
    """The mean of all seeds, with an interval that holds theirs."""
    machines: tuple[int, ...]
    """Where it was timed, as numbers from 1 on."""
    link: str | None
    """To its page, or to that of its best seed."""

    @property
    def metric(self) -> float:
        return fmean(self.metrics)

    @property
    def span(self) -> tuple[float, float, float]:
        """The lowest seed, the mean and the highest."""
        return min(self.metrics), self.metric, max(self.metrics)

    @property
    def latency(self) -> str:
        """Empty where there is none, and where it would be a mean over machines."""
        return milliseconds(self.timing.seconds) if self.timing and len(self.machines) == 1 else ""

    @property
    def of_dense(self) -> str:
        return str(self.timing) if self.timing and self.seeds else ""


@dataclass(frozen=True)
class Points:
    dense: Point
    versions: tuple[Point, ...]
    runs: Mapping[str, Point]
    """The finished ones, by their names."""

    @property
    def traces(self) -> list[Sequence[Point]]:
        """Each run, then the versions, then the dense model; where each version has one run, they are the same."""
        runs = [list(self.runs.values())] if len(self.runs) > len(self.versions) else []
        return [*runs, self.versions, [self.dense]]


@dataclass(frozen=True)
class Axis:
    """A cost to draw points by."""

    name: str
    title: str
    value: Callable[[Point], float | None]
    ticks: Mapping[str, str] = field(default_factory=dict)
    """How plotly is to write the numbers, where they are large."""

    def frontier(self, points: Points) -> list[Point]:
        """The versions that no other beats, the cheapest first, and the dense model among them if its cost is known."""
        known = [(cost, point) for point in (*points.versions, points.dense) if (cost := self.value(point)) is not None]
        return [known[i][1] for i in frontier([(cost, point.metric) for cost, point in known])]


_MILLISECONDS = Axis("latency", "latency, ms", lambda point: 1e3 * point.timing.seconds if point.timing else None)
_OF_DENSE = Axis("latency", "latency, × dense", lambda point: point.timing.ratio if point.timing else None)
_COUNTED = (
    Axis("file size", "file size", lambda point: point.costs.size, {"tickformat": "~s", "ticksuffix": "B"}),
    Axis("MACs", "MACs of one example", lambda point: point.costs.macs, {"tickformat": "~s"}),
    Axis("parameters", "parameters", lambda point: point.costs.params, {"tickformat": "~s"}),
)


def axes_of(points: Points, machines: int) -> list[Axis]:
    """The costs that all versions have. Milliseconds of different machines do not compare."""
    latency = _MILLISECONDS if machines == 1 else _OF_DENSE
    return [axis for axis in (latency, *_COUNTED) if all(axis.value(point) is not None for point in points.versions)]


def points_of(found: Sweep, links: Mapping[str, str]) -> Points:
    """`links` lead to the runs' own pages, and to the dense model's, by name and where they have one."""
    versions = [
        _point(found, version.name, version.runs, version.costs, links.get(version.best_run.name))
        for version in found.versions
    ]
    runs = {
        run.name: _point(found, run.version, [run], found.costs(run), links.get(run.name)) for run in found.finished
    }
    return Points(_dense(found, links), tuple(versions), runs)


def _dense(found: Sweep, links: Mapping[str, str]) -> Point:
    record, timing = found.dense, found.timing(DENSE_RUN)
    machines, link = tuple(range(1, len(found.machines) + 1)), links.get(DENSE_RUN)
    return Point(DENSE_RUN, (), (record.metric,), found.dense_costs, record.size.nonzeros, timing, machines, link)


def _point(found: Sweep, name: str, runs: Sequence[SweptRun], costs: Costs, link: str | None) -> Point:
    last = [run.history.records[-1] for run in runs if run.history]
    timings = [timing for run in runs if (timing := found.timing(run.name))]
    return Point(
        name,
        tuple(run.seed for run in runs),
        tuple(record.metric for record in last),
        costs,
        fmean(record.size.nonzeros for record in last),
        _together(timings) if len(timings) == len(runs) else None,
        _machines(found, runs),
        link,
    )


def _together(timings: Sequence[Timing]) -> Timing:
    return Timing(
        fmean(timing.seconds for timing in timings),
        fmean(timing.ratio for timing in timings),
        min(timing.low for timing in timings),
        max(timing.high for timing in timings),
        min(timing.rounds for timing in timings),
    )


def _machines(found: Sweep, runs: Sequence[SweptRun]) -> tuple[int, ...]:
    measured = [found.measurements[run.name] for run in runs if run.name in found.measurements]
    return tuple(sorted({1 + found.machines.index(item.comparison.machine.name) for item in measured}))
