"""`hardware`: the report on this machine or its GPU, measured once and kept for the next time and for planning."""

from __future__ import annotations

import json
from typing import Literal, overload

from secateur.base import write_cache
from secateur.bench import Machine, hardware_file, read_hardware_file, require_device
from secateur.studies.gpu.cuda_report import GpuReport
from secateur.studies.gpu.cuda_study import study_gpu
from secateur.studies.machine.hardware_report import HardwareReport
from secateur.studies.machine.machine_study import study_hardware


@overload
def hardware(*, device: Literal["cpu"] = "cpu", again: bool = False, progress: bool = True) -> HardwareReport: ...
@overload
def hardware(*, device: str, again: bool = False, progress: bool = True) -> HardwareReport | GpuReport: ...
def hardware(*, device: str = "cpu", again: bool = False, progress: bool = True) -> HardwareReport | GpuReport:
    """Measures what zeros and fewer channels buy on this machine, and which channel counts it likes.

    Takes about three minutes on two cores, or a minute on a GPU, best while nothing else runs. The report is kept for
    this machine: the next call returns it at once, and planning on the processor uses it.

    Args:
        device: "cpu", or "cuda" for products on the GPU: CSR, blocks, 2:4 and fewer channels against dense.
        again: whether to measure even if this machine was measured before.
        progress: False for silence.
    """
    require_device(device)
    if not again and (known := load_cached() if device == "cpu" else load_cached_gpu()):
        return known
    report = study_hardware(progress=progress) if device == "cpu" else study_gpu(progress=progress)
    save_cached(report)
    return report


def load_cached(machine: Machine | None = None) -> HardwareReport | None:
    """The report on `machine`, by default this one; None, with a warning, if the file cannot be used."""
    return read_hardware_file(HardwareReport.from_json, machine)


def load_cached_gpu() -> GpuReport | None:
    return read_hardware_file(GpuReport.from_json, device="cuda")


def save_cached(report: HardwareReport | GpuReport) -> None:
    device = "cpu" if isinstance(report, HardwareReport) else "cuda"
    write_cache(hardware_file(report.machine, device), json.dumps(report.to_json()))
