"""Clocks: each runs a call so many times and tells the seconds that all of them took together.

On one thread, CPU time leaves out what other programs take. Several threads wait for each other, so only the wall clock
tells how long they took. A GPU works on its own, so its own events tell.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Clock = Callable[[Callable[[], Any], int], float]


def _reading(now: Callable[[], float]) -> Clock:
    def clock(call: Callable[[], Any], repeats: int) -> float:
        started = now()
        for _ in range(repeats):
            call()
        return now() - started

    return clock


thread_clock = _reading(time.thread_time)
"""CPU time of the calling thread."""
process_clock = _reading(time.process_time)
"""CPU time of all threads: for runtimes that compute in a thread of their own, even if it is only one."""
wall_clock = _reading(time.perf_counter)


def cpu_clock(threads: int) -> Clock:
    return thread_clock if threads == 1 else wall_clock


def clock_on(device: torch.device, threads: int) -> Clock:
    return cuda_clock if device.type == "cuda" else cpu_clock(threads)


def cuda_clock(call: Callable[[], Any], repeats: int) -> float:
    """From the device's own events, without the time of launching the first kernel. No GPU has run this yet."""
    import torch

    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    before.record()
    for _ in range(repeats):
        call()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after)) / 1e3  # CUDA counts milliseconds
