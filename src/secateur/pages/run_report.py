"""`RunReport`: what the page of a run shows, as plain data that JSON can hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from secateur.base import (
    Count,
    Damaged,
    FileFormat,
    LeftAlone,
    SecateurError,
    UsageError,
    did_you_mean_path,
    from_json,
    read_json,
    require_within,
    to_json,
    write_text,
)
from secateur.bench import Machine, Measurement, Refusal, Sheet
from secateur.loop import History
from secateur.pages.earlier_report import from_version_1
from secateur.plans import GroupCut

REPORT_FILE = "report.json"
_MOST_BYTES = 32 << 20
"""A model of fifty thousand layers needs less; a page takes ten times the memory of what it shows."""


@dataclass(frozen=True, kw_only=True)
class RunReport(History):
    """A run without its tensors, and the sheet that it was measured on."""

    _file_format: ClassVar = FileFormat(
        "secateur-report", 2, "report of a run", "`secateur prune` or `secateur measure`"
    )

    name: str
    cut: str
    """What was done to the model, in a sentence."""
    target: str
    """How the target was met; empty if there was none."""
    unit: str
    """ "channels" or "weights": what `layers` counts."""
    layers: Mapping[str, tuple[Count, Count]]
    """What is left of each layer, and what there was."""
    groups: tuple[GroupCut, ...]
    left_alone: tuple[LeftAlone, ...]
    planned_macs: tuple[int, int] | None
    """Before and after, as the plan counts them."""
    sheet: Sheet | None
    """Of the dense model and this one, in that order."""
    file_bytes: int
    """Of the pruned model as it is stored."""
    settings: Mapping[str, str]
    versions: Mapping[str, str]
    machine: Machine
    """That made this report."""

    def __post_init__(self) -> None:
        """What the page divides by, or takes for granted."""
        super().__post_init__()
        histogram = self.histogram
        facts = {
            "more left than there was": all(0 <= left <= total > 0 for left, total in self.layers.values())
            and all(0 <= group.after <= group.before > 0 for group in self.groups),
            "an accuracy that is no share": all(
                not record.counted or (record.counted > 0 and 0 <= record.metric <= 1) for record in self.records
            ),
            "a sheet of other models": self.sheet is None or _is_of_two_models(self.sheet),
            "a call that takes no time": all(
                timing.median > 0 for item in self.measurements for timing in item.comparison.timings.values()
            ),
            "a histogram without bins": histogram is None
            or (
                len(histogram.kept) == len(histogram.removed) == len(histogram.edges) - 1 >= 2
                and 0 < histogram.edges[1] < histogram.edges[-1] < math.inf
            ),
        }
        for fault, absent in facts.items():
            if not absent:
                raise ValueError(fault)

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        return self.sheet.measurements if self.sheet else ()

    @property
    def headline(self) -> Measurement | None:
        """In the runtime that the run was pruned for, if it was measured there; then with the same batch and threads
        on the same device, then the first."""

        def as_in_run(item: Measurement) -> list[bool]:
            took = item.comparison
            own = {"runtime": took.runtime, "batch": item.batch, "threads": took.threads, "device": took.device}
            return [self.settings.get(setting) == str(value) for setting, value in own.items()]

        return max(self.measurements, key=as_in_run, default=None)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        return self.sheet.refusals if self.sheet else ()

    @property
    def measured_name(self) -> str:
        """Of this run's model on the sheet."""
        return list(self.sheet.footprints)[1] if self.sheet else ""

    @property
    def macs(self) -> tuple[int, int] | None:
        """Before and after, if anybody has counted them."""
        if self.sheet is None:
            return self.planned_macs
        before, after = (footprint.macs for footprint in self.sheet.footprints.values())
        return before, after

    @property
    def macs_ratio(self) -> float | None:
        """Of the multiply-adds left; all of them where weights only became zero, even if nobody has counted."""
        if self.macs and self.macs[0]:
            return self.macs[1] / self.macs[0]
        return 1.0 if self.unit == "weights" else None

    @staticmethod
    def from_json(stored: Any) -> RunReport:
        """What `save_report` wrote, now or in version 0.1.0."""
        try:
            return from_json(RunReport, from_version_1(stored))
        except (Damaged, OverflowError) as error:
            raise SecateurError(f"The report is damaged ({error}); make the run again.") from error


def save_report(report: RunReport, folder: str | Path) -> None:
    write_text(Path(folder) / REPORT_FILE, json.dumps(to_json(report), indent=1))


def load_report(folder: str | Path) -> RunReport:
    """The report in the folder of a run."""
    path = Path(folder)
    file = path / REPORT_FILE
    try:
        require_within(path, file)
        stored = read_json(file, _MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        hint = did_you_mean_path(path, "give a folder that `secateur prune` wrote.", folder=True)
        raise UsageError(f"There is no report of a run in {path}; {hint}") from None
    except (OSError, ValueError) as error:
        raise SecateurError(f"{file} cannot be read ({error}); make the run again.") from error
    try:
        return RunReport.from_json(stored)
    except SecateurError as error:
        raise SecateurError(f"{file}: {error}") from error


def _is_of_two_models(sheet: Sheet) -> bool:
    names = list(sheet.footprints)
    return len(names) == 2 and all(
        [sheet.baseline, names[1]] == names == list(item.comparison.timings) == list(item.peak_megabytes)
        for item in sheet.measurements
    )
