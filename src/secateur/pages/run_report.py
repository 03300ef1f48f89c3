"""`RunReport`: everything that the page of a run shows, as plain data that JSON can hold."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secateur.base import (
    Damaged,
    LeftAlone,
    SecateurError,
    UsageError,
    did_you_mean_path,
    from_json,
    require_format,
    to_json,
    write_text,
)
from secateur.bench import Machine, Timing
from secateur.loop import Record, WeightHistogram
from secateur.plans import GroupCut

__all__ = ["REPORT_FILE", "Latency", "LayerLeft", "RunReport", "load_report", "save_report"]

REPORT_FILE = "report.json"

_FORMAT = "secateur-report"
_VERSION = 1


@dataclass(frozen=True)
class LayerLeft:
    """What is left of one layer, in the unit of the report."""

    name: str
    left: int
    total: int


@dataclass(frozen=True)
class Latency:
    """The dense and the pruned model, timed in turn in one runtime with one batch."""

    runtime: str
    precision: str
    threads: int
    batch: int
    dense: Timing
    pruned: Timing
    control: Timing
    """The dense model against its own copy."""
    peak_megabytes: tuple[float, ...]
    """Of the dense and the pruned model; NaN where the system cannot tell."""

    @property
    def where(self) -> str:
        return f"{self.runtime}, batch {self.batch}"

    @property
    def conditions(self) -> tuple[str, str, int, int]:
        """Latencies with equal conditions compare."""
        return self.runtime, self.precision, self.threads, self.batch


@dataclass(frozen=True)
class RunReport:
    """What `report_of` gathers. The page shows what is here and says how to get what is not."""

    name: str
    metric_name: str
    tolerance: float
    records: tuple[Record, ...]
    verdict: str
    recovered: bool
    cut: str
    """What was done to the model, in a sentence."""
    target: str
    """How the target was met; empty if there was none."""
    unit: str
    """ "channels" or "weights": what `layers` counts."""
    layers: tuple[LayerLeft, ...]
    groups: tuple[GroupCut, ...]
    left_alone: tuple[LeftAlone, ...]
    macs: tuple[int, ...]
    """Multiply-adds before and after; empty if nobody has counted them."""
    macs_of: str
    """What pass they were counted in."""
    file_bytes: int
    """Of the pruned model as it is stored."""
    latencies: tuple[Latency, ...]
    not_measured: tuple[str, ...]
    """Why a runtime is missing among the latencies, in sentences."""
    histogram: WeightHistogram | None
    settings: dict[str, str]
    versions: dict[str, str]
    machine: Machine
    """That measured the latencies, or else that pruned."""

    @property
    def dense(self) -> Record:
        """The last stop before any cut."""
        return [record for record in self.records if record.phase in ("before", "train")][-1]

    @property
    def final(self) -> Record:
        return self.records[-1]

    @property
    def pruned(self) -> bool:
        return bool(self.layers)

    @property
    def macs_ratio(self) -> float | None:
        """Of the multiply-adds left; all of them where weights only became zero, even if nobody has counted."""
        if len(self.macs) == 2 and self.macs[0]:
            return self.macs[1] / self.macs[0]
        return 1.0 if self.unit == "weights" else None

    def to_json(self) -> dict[str, Any]:
        return {"format": _FORMAT, "version": _VERSION, **to_json(self)}

    @staticmethod
    def from_json(stored: Any) -> RunReport:
        """What `to_json` made, checked field by field."""
        require_format(stored, _FORMAT, _VERSION, "report of a run", "RunReport.to_json or save_report")
        try:
            report = from_json(
                RunReport, {key: stored[key] for key in stored if key not in ("format", "version")}, "the report"
            )
            _require_sense(report)
        except (Damaged, OverflowError) as error:
            raise SecateurError(f"The report is damaged ({error}); make the run again.") from error
        return report


def save_report(report: RunReport, folder: str | Path) -> None:
    write_text(Path(folder) / REPORT_FILE, json.dumps(report.to_json(), indent=1))


def load_report(folder: str | Path) -> RunReport:
    """The report in the folder of a run."""
    path = Path(folder)
    file = path / REPORT_FILE
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        hint = did_you_mean_path(path, "give a folder that `secateur prune` wrote.", folder=True)
        raise UsageError(f"There is no report of a run in {path}; {hint}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise SecateurError(f"{file} cannot be read ({error}); make the run again.") from error
    try:
        return RunReport.from_json(stored)
    except SecateurError as error:
        raise SecateurError(f"{file}: {error}") from error


def _require_sense(report: RunReport) -> None:
    """What the page divides by, or takes for granted."""
    histogram = report.histogram
    facts = {
        "no stop before the cut": any(record.phase in ("before", "train") for record in report.records),
        "more left than there was": all(0 <= layer.left <= layer.total and layer.total for layer in report.layers)
        and all(0 <= group.after <= group.before and group.before for group in report.groups),
        "multiply-adds or memory not in pairs": len(report.macs) in (0, 2)
        and all(len(latency.peak_megabytes) == 2 for latency in report.latencies),
        "an accuracy that is no share": not any(
            record.counted and not (record.counted > 0 and 0 <= record.metric <= 1) for record in report.records
        ),
        "a call that takes no time": not any(
            timing.median <= 0 for latency in report.latencies for timing in (latency.dense, latency.pruned)
        ),
        "a histogram without bins": histogram is None
        or (len(histogram.kept) == len(histogram.removed) == len(histogram.edges) - 1 >= 2 and histogram.edges[1] > 0),
    }
    for fault, absent in facts.items():
        if not absent:
            raise Damaged(fault)
