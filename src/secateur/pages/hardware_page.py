"""The page of a hardware report: the data that `hardware.html.j2` shows."""

from __future__ import annotations

from pathlib import Path

from secateur.pages.hardware_charts import cost_charts, format_charts, network_chart, side_chart, time_chart
from secateur.pages.hardware_text import about_measuring, about_time, hardware_sections, product_text
from secateur.pages.page import save_page
from secateur.pages.published_page import published_data
from secateur.studies import HardwareReport, gpu_facts, published_claims


def save_hardware_page(report: HardwareReport, path: str | Path) -> None:
    save_page(
        path,
        "hardware.html.j2",
        title="What pruning buys on this machine",
        about_measuring=about_measuring(report),
        claims=report.claims,
        sections=hardware_sections(report, narrow=False),
        figures=[format_charts(report), [], [side_chart(report), network_chart(report)], cost_charts(report)],
        products=[(product_text(each), time_chart(each), about_time(each)) for each in report.ablations],
        published=published_data(gpu_facts()),
        published_claims=published_claims(),
    )
