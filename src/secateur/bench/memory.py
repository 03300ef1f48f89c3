"""How much memory a call takes at most, beyond what the process held before it."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

_CPU = torch.device("cpu")
_RESET = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


def peak_extra_megabytes(call: Callable[[], object], device: torch.device = _CPU) -> float | None:
    """Of the GPU's memory for a CUDA device, else of this process's own; None where the system cannot tell.

    On a CPU it is what the system sees: free memory that the allocator holds and cannot give back (the end of a heap
    that another library has grown past) is used again without being counted.
    """
    if device.type == "cuda":
        return _peak_on_gpu(call, device)
    _give_back_free_memory()
    try:
        _RESET.write_text("5")  # Linux then starts its high-water mark anew
        before = _megabytes("VmRSS")
    except OSError:
        call()
        return None
    call()
    return max(0.0, _megabytes("VmHWM") - before)


def _peak_on_gpu(call: Callable[[], object], device: torch.device) -> float:
    """No GPU has run this yet."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 1e6


def _give_back_free_memory() -> None:
    """What earlier calls have freed, but the allocator still keeps, would be used again without being seen."""
    gc.collect()
    with suppress(OSError, AttributeError):  # other C libraries than GNU's have no such function
        ctypes.CDLL(None).malloc_trim(0)


def _megabytes(field: str) -> float:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError(f"this system does not report {field}")
