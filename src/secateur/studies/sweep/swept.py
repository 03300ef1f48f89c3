"""`Sweep`: many runs from one dense model, what each was worth, and what is missing. Plain data to print and store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Annotated, ClassVar

from secateur.base import (
    NOT_STORED,
    Count,
    FileFormat,
    Label,
    Must,
    SecateurError,
    UsageError,
    aligned,
    byte_text,
    count_text,
    did_you_mean_path,
    joined_lines,
    load_record,
    metric_text,
    milliseconds,
    short_count,
    some_of,
    to_json,
    write_text,
)
from secateur.bench import Measurement, Sheet, Timing
from secateur.loop import History, Record
from secateur.studies.sweep.conditions import COSTS, nothing_meets, parse_condition

SWEEP_FILE = "sweep.json"
DENSE_RUN = "dense"
"""The folder of the dense model, and its name on the sheets."""


def _is_one_name(text: str) -> bool:
    """One that does not lead out of the folder that it is in."""
    return Path(text).name == text


@dataclass(frozen=True)
class SweptRun:
    """One version with one seed: a run of its own, in a folder of its own."""

    name: Annotated[Label, Must(_is_one_name, "is no name of a folder")]
    """Of its folder."""
    version: Label
    """What it shares with the runs of other seeds, such as "latency=0.5"."""
    seed: Count
    history: History | None = None
    """None until it has ended well."""
    file_bytes: Count = 0
    """As it is stored."""
    planned_macs: Count | None = None
    """What its plan counts; None for zeros, and before it has ended."""
    failure: Label = ""
    """Why it did not end, in a sentence."""
    cut: Label = ""
    """All that was asked for, as one text that tells it from other cuts."""

    @property
    def finished(self) -> bool:
        return self.history is not None


@dataclass(frozen=True)
class Costs:
    """Of a model; None what nobody has measured."""

    latency: float | None
    """Seconds of one call."""
    macs: float | None
    """Multiply-adds of one example."""
    size: float
    """Bytes of its file, as it is stored."""
    params: float


@dataclass(frozen=True)
class Version:
    """The finished runs of one cut, which differ in their seeds."""

    name: str
    runs: tuple[SweptRun, ...]
    metrics: tuple[float, ...]
    costs: Costs
    """Their means."""

    @property
    def metric(self) -> float:
        return mean(self.metrics)

    @property
    def best_run(self) -> SweptRun:
        return self.runs[self.metrics.index(max(self.metrics))]


@dataclass(frozen=True)
class Sweep:
    """What `sweep` returns; `print(found)` is a table of all runs."""

    _file_format: ClassVar = FileFormat("secateur-sweep", 1, "record of a sweep", "secateur.sweep")

    metric: Label
    """The name of what judges the models; higher is better."""
    dense: Record
    runs: tuple[SweptRun, ...]
    """All that were asked for, also those that are missing."""
    sheets: tuple[Sheet, ...] = ()
    """Runs by their names beside the dense model, so many at a time as are timed in turn."""
    settings: Mapping[Label, Label] = field(default_factory=dict)
    """What all runs share."""
    folder: Path = field(default=Path(), metadata=NOT_STORED)

    @property
    def finished(self) -> tuple[SweptRun, ...]:
        return tuple(run for run in self.runs if run.finished)

    @property
    def missing(self) -> tuple[SweptRun, ...]:
        return tuple(run for run in self.runs if not run.finished)

    @cached_property
    def measurements(self) -> dict[str, Measurement]:
        """By run, and for the dense model the first."""
        found: dict[str, Measurement] = {}
        for sheet in self.sheets:
            for item in sheet.measurements[:1]:
                for name in item.comparison.timings:
                    found.setdefault(DENSE_RUN if name == sheet.baseline else name, item)
        return found

    @cached_property
    def machines(self) -> tuple[str, ...]:
        """Where latencies were measured; their milliseconds compare only on one."""
        return tuple(dict.fromkeys(map(_machine, self.measurements.values())))

    def timing(self, name: str) -> Timing | None:
        """Of a run, by its name, or of the dense model. Sheets are made minutes apart, and a machine is never twice the
        same: seconds are those of the dense model on the machine's first sheet, times the ratio within a run's own."""
        item = self.measurements.get(name)
        if item is None:
            return None
        if name == DENSE_RUN:
            return item.comparison[item.comparison.baseline]
        return replace(own := item.comparison[name], seconds=own.ratio * self._dense_seconds[_machine(item)])

    @cached_property
    def _dense_seconds(self) -> dict[str, float]:
        """By machine, on its first sheet."""
        items = [item for sheet in self.sheets for item in sheet.measurements[:1]]
        return {_machine(item): item.comparison[item.comparison.baseline].seconds for item in reversed(items)}

    @property
    def dense_costs(self) -> Costs:
        return self._costs(DENSE_RUN, self.dense, self.dense.size.file_bytes, None)

    def costs(self, run: SweptRun) -> Costs:
        """Of a finished run."""
        assert run.history is not None
        return self._costs(run.name, run.history.records[-1], run.file_bytes, run.planned_macs)

    def _costs(self, name: str, last: Record, file_bytes: int, planned: int | None) -> Costs:
        timing = self.timing(name)
        footprints = [sheet.footprints[name] for sheet in self.sheets if name in sheet.footprints]
        macs = footprints[0].macs if footprints else planned
        return Costs(timing.seconds if timing else None, macs, file_bytes, last.size.parameters)

    @cached_property
    def versions(self) -> tuple[Version, ...]:
        """Those with a finished run."""
        runs: dict[str, list[SweptRun]] = {}
        for run in self.finished:
            runs.setdefault(run.version, []).append(run)
        return tuple(self._version(name, members) for name, members in runs.items())

    def _version(self, name: str, runs: Sequence[SweptRun]) -> Version:
        each = [self.costs(run) for run in runs]
        own: dict[str, float | None] = {}
        for what in COSTS:
            values = [value for cost in each if (value := getattr(cost, what)) is not None]
            own[what] = mean(values) if len(values) == len(each) else None
        metrics = tuple(run.history.after for run in runs if run.history is not None)
        return Version(name, tuple(runs), metrics, Costs(**own))  # type: ignore[arg-type]  # counts are never missing

    def best(self, condition: str) -> Version:
        """The version to ship: with "accuracy>=0.87" the one of the lowest latency among those that good, with
        "latency<=3ms" the one of the highest accuracy among those that fast. Seeds count by their mean; the run to take
        is its `best_run`."""
        asked = parse_condition(condition, self.metric)
        dense = vars(self.dense_costs)
        fit = [each for each in self.versions if asked.holds(each.metric, vars(each.costs), dense)]
        if not fit:
            best = max((each.metric for each in self.versions), default=self.dense.metric)
            raise SecateurError(nothing_meets(asked, self.metric, best))
        by = next(what for what in COSTS if all(getattr(each.costs, what) is not None for each in fit))
        if asked.least is None:
            return max(fit, key=lambda each: (each.metric, -getattr(each.costs, by)))
        return min(fit, key=lambda each: (getattr(each.costs, by), -each.metric))

    @property
    def verdict(self) -> str:
        """Whether it is complete, and if not what is missing."""
        if not self.missing:
            return f"Complete: {count_text(len(self.runs), 'run')}."
        names = some_of([run.name for run in self.missing], 8)
        return f"INCOMPLETE: {len(self.missing)} of {count_text(len(self.runs), 'run')} missing ({names})."

    def rows(self) -> list[tuple[str, ...]]:
        """A head, the dense model, and a row for each run."""
        head = ("run", "seed", self.metric, "latency", "× dense", "parameters", "not zero", "file")
        return [head, self._row(DENSE_RUN, "", self.dense, self.dense.size.file_bytes), *map(self._row_of, self.runs)]

    def _row_of(self, run: SweptRun) -> tuple[str, ...]:
        if run.history is None:
            return (run.version, str(run.seed), "failed" if run.failure else "not run", *5 * ("",))
        return self._row(run.name, str(run.seed), run.history.records[-1], run.file_bytes, run.version)

    def _row(self, name: str, seed: str, last: Record, file_bytes: int, title: str = DENSE_RUN) -> tuple[str, ...]:
        timing = self.timing(name)
        latency = (milliseconds(timing.seconds), "1" if name == DENSE_RUN else str(timing)) if timing else ("–", "–")
        size = last.size
        counts = short_count(size.parameters), short_count(size.nonzeros), byte_text(file_bytes)
        return title, seed, metric_text(self.metric, last.metric), *latency, *counts

    def _failures(self) -> Iterator[str]:
        return (f"{run.name}: {run.failure}" for run in self.runs if run.failure)

    def __str__(self) -> str:
        return joined_lines([*aligned(self.rows(), right=range(1, 8)), *self._failures(), self.verdict])

    def save(self) -> None:
        write_text(self.folder / SWEEP_FILE, json.dumps(to_json(self)))

    @staticmethod
    def load(folder: str | Path) -> Sweep:
        """From the folder that `sweep` wrote."""
        path = Path(folder)
        if not (path / SWEEP_FILE).is_file():
            hint = did_you_mean_path(path, "give the folder of one: --out, or out in Python.", folder=True)
            raise UsageError(f"There is no sweep in {path}; {hint}")
        return replace(load_record(Sweep, path / SWEEP_FILE), folder=path)


def _machine(item: Measurement) -> str:
    return item.comparison.machine.name
