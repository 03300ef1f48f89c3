"""`hardware`: the report on this machine, measured once and kept for the next time and for planning."""

from __future__ import annotations

import json

from secateur.base import write_cache
from secateur.bench import Machine, hardware_file, read_hardware_file
from secateur.studies.machine.hardware_report import HardwareReport
from secateur.studies.machine.machine_study import study_hardware


def hardware(*, again: bool = False, progress: bool = True) -> HardwareReport:
    """Measures what zeros and fewer channels buy on this machine, and which channel counts it likes.

    Takes about three minutes on two cores, best while nothing else runs. The report is kept for this machine: the next
    call returns it at once, and planning uses it.

    Args:
        again: whether to measure even if this machine was measured before.
        progress: False for silence.
    """
    known = None if again else load_cached()
    if known is not None:
        return known
    report = study_hardware(progress=progress)
    save_cached(report)
    return report


def load_cached(machine: Machine | None = None) -> HardwareReport | None:
    """The report on `machine`, by default this one; None, with a warning, if the file cannot be used."""
    return read_hardware_file(HardwareReport.from_json, machine)


def save_cached(report: HardwareReport) -> None:
    write_cache(hardware_file(report.machine), json.dumps(report.to_json()))
