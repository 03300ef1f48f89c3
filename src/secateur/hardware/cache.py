"""One report for each machine and version, in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path

from secateur import __version__
from secateur.atomic import write_text
from secateur.cache import cache_folder
from secateur.errors import SecateurError, SecateurWarning
from secateur.hardware.report import HardwareReport
from secateur.measure.machine import Machine, this_machine
from secateur.stored import Damaged

__all__ = ["cache_file", "load_cached", "save_cached"]


def cache_file(machine: Machine) -> Path:
    digest = hashlib.sha256(f"{machine.name}\n{__version__}".encode()).hexdigest()[:16]
    return cache_folder() / f"hardware-{digest}.json"


def load_cached(machine: Machine | None = None) -> HardwareReport | None:
    """The report on `machine`, by default this one; None, with a warning, if the file cannot be used."""
    file = cache_file(machine or this_machine())
    try:
        report = HardwareReport.from_json(json.loads(file.read_text(encoding="utf-8")))
        if report.version != __version__:
            raise Damaged(f"secateur {report.version} wrote it")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # not JSON, not text, or not a report
        _warn(f"The measurements in {file} are ignored ({error}); `secateur hardware --again` replaces them.")
        return None
    return report


def save_cached(report: HardwareReport) -> None:
    """Minutes of measuring are not thrown away because the cache cannot be written: that is only a warning."""
    file = cache_file(report.machine)
    try:
        write_text(file, json.dumps(report.to_json()))
    except SecateurError as error:
        _warn(f"The measurements are not kept for the next time: {error}")


def _warn(sentence: str) -> None:
    warnings.warn(sentence, SecateurWarning, stacklevel=3)
