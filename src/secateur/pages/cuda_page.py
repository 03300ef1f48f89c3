"""The page of a report on a GPU: the data that `cuda.html.j2` shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from secateur.pages.charts import GREY, add_points, interval, new_figure
from secateur.pages.cuda_text import about_gpu, gpu_tables, not_measured
from secateur.pages.page import save_page
from secateur.studies import GPU_FORMATS, GpuReport

_TICKS = [digit * 10.0**power for power in range(-3, 4) for digit in (1, 2, 5)]


def save_gpu_page(report: GpuReport, path: str | Path) -> None:
    save_page(
        path,
        "cuda.html.j2",
        title="What pruning buys on this GPU",
        about=about_gpu(report),
        answers=report.answers,
        figures=_charts(report),
        tables=gpu_tables(report, narrow=False),
        missing=not_measured(report),
    )


def _charts(report: GpuReport) -> list[Any]:
    """Time over the batch, for each type of number."""
    charts = []
    for dtype in dict.fromkeys(product.dtype for product in report.products):
        chart = new_figure(f"{report.size:,} × {report.size:,} weight, {dtype}", "batch", "time, × dense", height=520)
        for i, name in enumerate(GPU_FORMATS):
            found = [each for each in report.products if each.dtype == dtype and name in each.timings]
            timings = [each.timings[name] for each in found]
            batches = [f"{each.batch:,}" for each in found]
            texts = [f"batch {batch}: {timing} × dense" for batch, timing in zip(batches, timings, strict=True)]
            ratios = [timing.ratio for timing in timings]
            add_points(chart, name, i, batches, ratios, texts, error_y=interval(timings))
        chart.add_hline(y=1, line={"color": GREY, "dash": "dot"})
        every = [f"{each.batch:,}" for each in report.products if each.dtype == dtype]
        chart.update_xaxes(type="category", categoryorder="array", categoryarray=every)
        chart.update_yaxes(type="log", tickvals=_TICKS)
        charts.append(chart)
    return charts
