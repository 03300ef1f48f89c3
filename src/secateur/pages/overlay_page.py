"""Several runs over one another: what each kept of the metric against what it costs, and which no other beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secateur.base import UsageError, metric_text
from secateur.bench import Timing
from secateur.loop import Record
from secateur.pages.charts import COLOURS, GREY, as_text, interval, metric_axis, metric_interval, new_figure, where
from secateur.pages.page import save_page
from secateur.pages.run_report import RunReport


@dataclass(frozen=True)
class _Point:
    name: str
    cost: Timing
    """As a multiple of the dense model's; of a count, with an interval of no width."""
    record: Record

    @property
    def cost_text(self) -> str:
        return str(self.cost) if self.cost.rounds else f"{self.cost.ratio:.2f}"


def save_overlay_page(reports: Mapping[str, RunReport], path: str | Path, links: Mapping[str, str]) -> None:
    """`links` lead to the runs' own pages, by the same names as the reports."""
    metrics = {report.metric_name for report in reports.values()}
    if len(metrics) > 1:
        raise UsageError(
            f"The runs have different metrics ({', '.join(sorted(metrics))}); lay over runs of one metric."
        )
    metric = metrics.pop()
    cost, by_run = _common_cost(reports)
    runs = {name: _Point(name, by_run[name], report.records[-1]) for name, report in reports.items()}
    dense_metrics = {report.before: report.dense for report in reports.values()}
    dense = [_Point("dense", _exactly(1.0), record) for record in dense_metrics.values()]
    points = [*runs.values(), *dense]
    unbeaten = [points[i] for i in frontier([(point.cost.ratio, point.record.metric) for point in points])]
    save_page(
        path,
        "overlay.html.j2",
        metric_name=metric,
        metric=lambda value: metric_text(metric, value),
        cost=cost,
        rows=[(report, runs[name], links[name]) for name, report in reports.items()],
        unbeaten=unbeaten,
        picture=_picture(list(runs.values()), dense, unbeaten, cost, metric),
    )


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """The numbers of the points (cost, metric) that no other beats: better in one and at least as good in the other."""
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    best: list[int] = []
    for i in order:
        if not best or points[i][1] > points[best[-1]][1] or points[i] == points[best[-1]]:
            best.append(i)
    return best


def _common_cost(reports: Mapping[str, RunReport]) -> tuple[str, Mapping[str, Timing]]:
    """The first latency that all runs have under the same conditions; else their multiply-adds; else their sizes."""
    by_title = {
        name: {item.title: item.comparison[report.measured_name] for item in report.measurements}
        for name, report in reports.items()
    }
    for item in next(iter(reports.values())).measurements:
        if all(item.title in own for own in by_title.values()):
            return f"latency in {where(item)}", {name: own[item.title] for name, own in by_title.items()}
    macs = {name: _exactly(ratio) for name, report in reports.items() if (ratio := report.macs_ratio) is not None}
    if macs.keys() == reports.keys():
        return "MACs", macs
    ratios = {name: each.size_after.parameters / max(each.size_before.parameters, 1) for name, each in reports.items()}
    return "parameters", {name: _exactly(ratio) for name, ratio in ratios.items()}


def _exactly(ratio: float) -> Timing:
    return Timing(ratio, ratio, ratio, ratio, 0)


def _picture(
    runs: Sequence[_Point], dense: Sequence[_Point], unbeaten: Sequence[_Point], cost: str, metric: str
) -> Any:
    kind = cost.partition(" ")[0]  # where it was measured is in the title, and a phone has no room for both
    figure = new_figure("", f"{kind}, × dense", metric, 520, f"{metric} against {cost}, with the frontier")
    figure.add_scatter(
        name="frontier",
        x=[point.cost.ratio for point in unbeaten],
        y=[point.record.metric for point in unbeaten],
        mode="lines",
        line={"color": COLOURS[2], "width": 2, "dash": "dash", "shape": "hv"},
        hoverinfo="skip",
    )
    for name, members, symbol, colour in (
        ("on the frontier", [point for point in runs if point in unbeaten], "star", COLOURS[0]),
        ("beaten by another", [point for point in runs if point not in unbeaten], "circle-open", COLOURS[1]),
        ("dense", dense, "diamond", GREY),
    ):
        if members:
            figure.add_scatter(
                name=name,
                x=[point.cost.ratio for point in members],
                y=[point.record.metric for point in members],
                error_x=interval([point.cost for point in members]),
                error_y=metric_interval([point.record for point in members]),
                text=[as_text(point.name) for point in members] if members is not dense else None,
                hovertext=[_hover(point, metric) for point in members],
                hovertemplate="%{hovertext}<extra></extra>",
                mode="markers+text",
                textposition="top center",
                marker={"color": colour, "symbol": symbol, "size": 13, "line": {"width": 2, "color": colour}},
            )
    figure.update_layout(margin_t=30)
    metric_axis(figure, metric, digits=1)
    return figure


def _hover(point: _Point, metric: str) -> str:
    return f"<b>{as_text(point.name)}</b><br>{metric_text(metric, point.record.metric)}<br>{point.cost_text} × dense"
