"""`Gpu`: all that the study asks of a GPU, and `CudaGpu`, which asks CUDA for it.

Tests put a stand-in in the place of `CudaGpu`. No GPU has run its methods yet; everything else in the study has run.
"""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from secateur.formats import compressed

_FLUSHED_BYTES = 128 << 20
"""Where torch does not tell how large the L2 cache is."""
_CLOCKS = "clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu"


class Gpu(Protocol):
    """What may go wrong is raised by `linear`, `two_of_four` and `clock`, or by making a tensor on `device`."""

    device: torch.device
    name: str
    """With all that its numbers depend on."""
    capability: tuple[int, int]

    def linear(self, x: Tensor, weight: Tensor) -> Tensor: ...

    def two_of_four(self, weight: Tensor, backend: str) -> Tensor: ...

    def clock(self, call: Callable[[], Any], repeats: int) -> float:
        """Seconds that all calls took together on the device, each with nothing of its data in the L2 cache."""
        ...

    def clocks(self) -> str:
        """How fast it runs now, and how hot it is."""
        ...

    def free(self) -> None:
        """Gives back the memory that nothing holds any more."""
        ...

    def works(self) -> bool:
        """False after an error that CUDA does not recover from in the same process."""
        ...


class CudaGpu:
    def __init__(self) -> None:
        self.device = torch.device("cuda")
        self._properties = torch.cuda.get_device_properties(self.device)
        self.capability = torch.cuda.get_device_capability(self.device)
        (major, minor), gigabytes = self.capability, self._properties.total_memory / 1e9
        self.name = (
            f"{self._properties.name} (compute capability {major}.{minor}, {gigabytes:.0f} GB, "
            f"CUDA {torch.version.cuda}, driver {self._ask_driver('driver_version')})"
        )
        cache = getattr(self._properties, "L2_cache_size", 0)
        self._flushed = torch.empty(2 * cache or _FLUSHED_BYTES, dtype=torch.int8, device=self.device)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)

    def two_of_four(self, weight: Tensor, backend: str) -> Tensor:
        return compressed(weight, backend)

    def clock(self, call: Callable[[], Any], repeats: int) -> float:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
        torch.cuda.synchronize()
        for before, after in events:
            self._flushed.zero_()  # takes a while, so that the next call is already waiting when it ends
            before.record()
            call()
            after.record()
        torch.cuda.synchronize()
        return sum(float(before.elapsed_time(after)) for before, after in events) / 1e3  # CUDA counts milliseconds

    def clocks(self) -> str:
        told = self._ask_driver(_CLOCKS).split(", ")
        if len(told) != 4:
            return "unknown"
        now, most, memory, degrees = told
        return f"{now} of {most} MHz, memory {memory} MHz, {degrees} °C"

    def free(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()

    def works(self) -> bool:
        try:
            torch.zeros(1, device=self.device).item()
        except RuntimeError:
            return False
        return True

    def _ask_driver(self, query: str) -> str:
        """Of this very GPU, whatever CUDA_VISIBLE_DEVICES says; nvidia-smi does not come with torch."""
        own = f"GPU-{getattr(self._properties, 'uuid', '')}"
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", f"--id={own}"]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return "unknown"
