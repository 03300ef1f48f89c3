"""Keeps the report on this machine for the next time, and for planning."""

from __future__ import annotations

import json
import warnings

from secateur.base import SecateurError, SecateurWarning, write_text
from secateur.bench import Machine, hardware_file, read_hardware_file
from secateur.studies.machine.hardware_report import HardwareReport

__all__ = ["load_cached", "save_cached"]


def load_cached(machine: Machine | None = None) -> HardwareReport | None:
    """The report on `machine`, by default this one; None, with a warning, if the file cannot be used."""
    return read_hardware_file(HardwareReport.from_json, machine)


def save_cached(report: HardwareReport) -> None:
    """Minutes of measuring are not thrown away because the cache cannot be written: that is only a warning."""
    try:
        write_text(hardware_file(report.machine), json.dumps(report.to_json()))
    except SecateurError as error:
        warnings.warn(f"The measurements are not kept for the next time: {error}", SecateurWarning, stacklevel=2)
