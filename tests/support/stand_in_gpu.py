"""A stand-in for a GPU: it computes on the processor, and fails in every way that GPUs do where it is told to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from secateur.bench.turns import Timer
from secateur.studies.gpu.cuda_products import Answer, Case, time_product
from secateur.studies.gpu.cuda_study import GpuExtent

SMALL = GpuExtent(size=128, sparsity=0.9, batches=(1, 8, 64), seconds=4.0)
CPU = torch.device("cpu")
OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
NO_KERNEL = NotImplementedError("\"addmm_sparse\" not implemented for 'BFloat16'\nmore")
UNSUPPORTED_SHAPE = RuntimeError("Error original_tensor.shape torch.Size([128, 128]) is not supported!")
ILLEGAL_ACCESS = torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCompile with …")


@dataclass
class StandInGpu:
    """What is raised, computed or waited for depends on the weight's kind, its type and the batch."""

    fails: Callable[[str, Tensor], Exception | float | None] = lambda kind, x: None
    """By the kind of weight ("dense", "csr", "bsr16", "cusparselt", …) and the batch: an error to raise, or a factor
    that makes the product a wrong one."""
    slow: Mapping[str, float] = field(default_factory=dict)
    """Seconds that one call takes, by the kind of weight."""
    real_time: bool = False
    """Whether all others take the time that they do take, which depends on what else runs."""
    capability: tuple[int, int] = (8, 6)
    name: str = "Stand-in 3000 (compute capability 8.6, 12 GB)"
    device: torch.device = CPU
    dead: bool = False
    freed: int = 0
    clocked: list[int] = field(default_factory=list)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        assert not self.dead, "nothing runs after CUDA has stopped"
        kind = self._kind(weight)
        failure = self.fails(kind, x)
        if isinstance(failure, Exception):
            self.dead = isinstance(failure, torch.AcceleratorError)
            raise failure
        # The processor has no sparse kernels for half precision, which is not what is tested.
        return F.linear(x.float(), weight.to_dense().float()).to(x.dtype) * (1.0 if failure is None else failure)

    def two_of_four(self, weight: Tensor, backend: str) -> Tensor:
        assert ((weight.view(-1, 4) != 0).sum(1) <= 2).all()
        failure = self.fails(f"compressing for {backend}", weight)
        if isinstance(failure, Exception):
            raise failure
        compressed = weight.clone()
        compressed.backend = backend
        return compressed

    def clock(self, call: Callable[[], Any], repeats: int) -> float:
        self.clocked.append(repeats)
        started = time.perf_counter()
        for _ in range(repeats):
            call()
        took = time.perf_counter() - started if self.real_time else 1e-4 * repeats
        return self.slow.get(self._kind(call.args[1]), took)  # type: ignore[attr-defined]

    def clocks(self) -> str:
        return "1777 of 1777 MHz, memory 7501 MHz, 61 °C"

    def free(self) -> None:
        self.freed += 1

    def works(self) -> bool:
        return not self.dead

    def _kind(self, weight: Tensor) -> str:
        if weight.layout == torch.sparse_csr:
            return "csr"
        if weight.layout == torch.sparse_bsr:
            return f"bsr{weight.values().shape[-1]}"
        return getattr(weight, "backend", "dense" if weight.shape[0] == SMALL.size else "narrow")


@dataclass
class StandInWorker:
    """A new GPU each time that the last one has stopped, as a new process brings."""

    gpu: StandInGpu
    timer: Timer
    asked: list[Case] = field(default_factory=list)

    def measure(self, case: Case) -> Answer:
        self.gpu.dead = False
        self.asked.append(case)
        return time_product(case, self.gpu, self.timer)


def everything_fails_once(kind: str, x: Tensor) -> Exception | float | None:
    """One of each kind of failure, for the run in the documentation."""
    batch, half = x.shape[0], x.dtype == torch.float16
    failures: dict[tuple[str, bool], Exception | float] = {
        ("csr", False): NO_KERNEL,
        ("bsr16", False): 1.5,
        ("compressing for cusparselt", True): UNSUPPORTED_SHAPE,
    }
    if kind == "bsr64" and batch == 64:
        return OUT_OF_MEMORY
    if kind == "cutlass" and not half and batch == 8:
        return ILLEGAL_ACCESS
    return failures.get((kind, half))
