"""`study_gpu`: the products of `secateur hardware --device cuda`, one after the other."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import product as pairs

from secateur import __version__
from secateur.base import moment_now, steps
from secateur.bench import this_machine
from secateur.studies.gpu.cuda_child import ChildWorker, Worker
from secateur.studies.gpu.cuda_products import TIMING, Case, Product
from secateur.studies.gpu.cuda_report import GpuReport


@dataclass(frozen=True)
class GpuExtent:
    """How much is measured. The default is 100 points beside 10 dense products, in about a minute."""

    size: int = 4096
    sparsity: float = 0.9
    dtypes: tuple[str, ...] = ("float16", "bfloat16")
    batches: tuple[int, ...] = (1, 16, 128, 1024, 8192)
    seconds: float = 4.0
    """For each type and batch."""


def study_gpu(extent: GpuExtent | None = None, worker: Worker | None = None, *, progress: bool = True) -> GpuReport:
    if worker is None:
        with ChildWorker() as child:
            return study_gpu(extent, child, progress=progress)
    extent = extent or GpuExtent()
    started, moment, machine = time.monotonic(), moment_now(), this_machine()
    cases = [
        Case(extent.size, extent.sparsity, dtype, batch, extent.seconds, {})
        for dtype, batch in pairs(extent.dtypes, extent.batches)
    ]
    products: list[Product] = []
    left_out: dict[str, dict[str, str]] = {dtype: {} for dtype in extent.dtypes}
    with steps(len(cases), "hardware", progress) as begin:
        for case in cases:
            begin(f"{case.dtype}, batch {case.batch:,}")
            products.append(_measured(case, worker, left_out[case.dtype]))
    seconds = time.monotonic() - started
    return GpuReport(__version__, moment, seconds, machine, extent.size, extent.sparsity, tuple(products))


def _measured(case: Case, worker: Worker, left_out: dict[str, str]) -> Product:
    """Again and again without what stops the GPU, which is then left out of larger batches as well."""
    while True:
        answer = worker.measure(replace(case, left_out=dict(left_out)))
        if answer.stopped_by in ("", TIMING):
            return answer.product
        left_out[answer.stopped_by] = (
            f"it stops the GPU at batch {case.batch:,}: {answer.product.refused[answer.stopped_by]}"
        )
