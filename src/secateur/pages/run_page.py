"""The page of one run: the data that `run.html.j2` shows."""

from __future__ import annotations

import json
from pathlib import Path

from secateur.base import metric_text
from secateur.loop import WeightHistogram
from secateur.pages.group_drawing import draw_groups
from secateur.pages.page import save_page
from secateur.pages.run_charts import accuracy_chart, histogram_chart, latency_chart, layer_chart
from secateur.pages.run_report import RunReport


def save_run_page(report: RunReport, path: str | Path, plotly: Path | None = None) -> None:
    """`plotly` as in `save_page`."""
    lost, allowed = _points(report)
    save_page(
        path,
        "run.html.j2",
        plotly,
        report=report,
        metric=lambda value: metric_text(report.metric_name, value),
        lost=lost,
        allowed=allowed,
        accuracy=accuracy_chart(report),
        layers=layer_chart(report),
        drawing=draw_groups(report.groups, report.left_alone),
        latency=latency_chart(report),
        magnitudes=histogram_chart(report.histogram) if report.histogram else None,
        bins=_bins(report.histogram) if report.histogram else [],
        module=_module(report.settings.get("task", "")),
        folder=json.dumps(report.name),
    )


def _points(report: RunReport) -> tuple[str, str]:
    """What was lost and what may be, an accuracy in points."""
    scale, unit = (100, " points") if report.metric_name == "accuracy" else (1, "")
    lost = scale * (report.before - report.after)
    change = f"{abs(lost):.3g}{unit} {'lost' if lost > 0 else 'gained'}" if lost else "Nothing lost"
    return change, f"{scale * report.tolerance:g}{unit} are"


def _bins(histogram: WeightHistogram) -> list[tuple[float, float, int, int]]:
    """From, to, how many stayed and how many went, without those that nothing was in."""
    bins = zip(histogram.edges, histogram.edges[1:], histogram.kept, histogram.removed, strict=False)
    return [each for each in bins if each[2] or each[3]]


def _module(task: str) -> str:
    """What to import a task file as."""
    name = Path(task).stem if task.endswith(".py") else task
    return name if all(part.isidentifier() for part in name.split(".")) else "my_task"
