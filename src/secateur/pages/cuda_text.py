"""A report on a GPU in sentences and tables. The console and the page show the same ones."""

from __future__ import annotations

from statistics import median

from secateur.bench import NULL_CONTROL, Timing
from secateur.pages.hardware_text import Table
from secateur.studies import DENSE, GPU_FORMATS, GpuReport, Product, percent


def about_gpu(report: GpuReport) -> list[str]:
    size = f"{report.size:,} × {report.size:,}"
    off = [abs(product.control.ratio - 1) for product in report.products if product.control]
    noise = (
        f"The null control beside each, dense against itself, was off by {percent(median(off))} at the median and by "
        f"{percent(max(off))} at most."
        if off
        else "Nothing could be measured; the reasons are below."
    )
    widths = ", ".join(
        f"“{name}” is {width:,} wide ({(width / report.size) ** 2:.2f})" for name, width in report.widths().items()
    )
    return [
        f"Measured {report.measured_at} in {report.seconds:.0f} s on {report.gpu}, torch {report.machine.torch}: "
        f"{report.points} points. Clocks: {report.products[-1].clocks}.",
        f"F.linear with a {size} weight, by CUDA's own events, with the L2 cache flushed before each call. CSR and "
        f"BSR have {percent(report.sparsity)} zeros, BSR in whole blocks. The narrower weights are dense, and cut on "
        f"both sides, which leaves a share of the multiply-adds: {widths}.",
        "Ratios are between alternatives that took turns, with 95 % intervals; below 1 is faster. ~ is within the "
        f"noise, – was not measured. {noise}",
    ]


def gpu_tables(report: GpuReport, narrow: bool) -> list[Table]:
    """One for each type of number; a narrow one fits 80 columns, and leaves out the intervals."""
    tables = []
    for dtype in dict.fromkeys(product.dtype for product in report.products):
        products = [product for product in report.products if product.dtype == dtype]
        rows = [["batch", *(f"{product.batch:,}" for product in products)]]
        rows.append([f"{DENSE}, ms", *(_milliseconds(product) for product in products)])
        for name in GPU_FORMATS:
            rows.append([name, *(_cell(product, name, narrow) for product in products)])
        rows.append([NULL_CONTROL, *(_text(product.control, narrow) for product in products)])
        tables.append(Table(f"{dtype}, × dense", rows, range(1, len(products) + 1)))
    return tables


def not_measured(report: GpuReport) -> list[str]:
    """What is missing and why, the same reason once."""
    every = {product.batch for product in report.products}
    lines = []
    for (name, dtype, why), batches in report.refusals().items():
        where = "every batch" if set(batches) == every else f"batch {', '.join(f'{batch:,}' for batch in batches)}"
        lines.append(f"{name}, {dtype}, {where}: {why}.")
    return lines


def _cell(product: Product, name: str, narrow: bool) -> str:
    timing = product.timings.get(name)
    if timing is None or product.control is None:
        return "–"
    told = timing.is_faster(product.control) or timing.is_slower(product.control)
    return f"{'' if told else '~'}{_text(timing, narrow)}"


def _text(timing: Timing | None, narrow: bool) -> str:
    if timing is None:
        return "–"
    return (f"{timing.ratio:.2f}" if timing.ratio < 10 else f"{timing.ratio:.0f}") if narrow else str(timing)


def _milliseconds(product: Product) -> str:
    return f"{1e3 * product.timings[DENSE].seconds:.3f}" if DENSE in product.timings else "–"
