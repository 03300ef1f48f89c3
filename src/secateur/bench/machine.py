"""The machine that a measurement was made on: no number means anything without it."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Machine:
    cpu: str
    cores: int
    """That this process may use."""
    instructions: str
    """The widest vector instructions, as torch sees them, such as "AVX512"."""
    governor: str
    load: float
    """The number of programs that wanted a core, averaged over the last minute."""
    gpu: str
    system: str
    python: str
    torch: str

    @property
    def name(self) -> str:
        """What measurements may be shared between: the same hardware and the same torch."""
        return " · ".join([self.cpu, f"{self.cores} cores", self.instructions, self.gpu, f"torch {self.torch}"])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        gpu = f", {self.gpu}" if self.gpu != "no GPU" else ""
        return (
            f"{self.cpu} ({self.instructions}), {self.cores} cores{gpu}, governor {self.governor}, load "
            f"{self.load:.1f}, torch {self.torch}, Python {self.python}, {self.system}"
        )


def this_machine() -> Machine:
    import torch

    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        instructions=torch.backends.cpu.get_cpu_capability(),
        governor=_GOVERNOR.read_text().strip() if _GOVERNOR.exists() else "unknown",
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan"),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU",
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=torch.__version__,
    )


@cache  # every plan asks, and the file is as long as the processor has cores
def _cpu() -> str:
    """Python's own answer is empty or the bare architecture on Linux."""
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
