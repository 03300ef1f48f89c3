"""Several runs over one another: what each kept of the metric against what it costs, and which no other beats."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secateur import __version__
from secateur.base import UsageError, metric_text, moment_now
from secateur.loop import Record
from secateur.pages.charts import COLOURS, GREY, as_text, error_bars, metric_axis, metric_interval, new_figure
from secateur.pages.common_cost import CommonCost, Cost, common_cost
from secateur.pages.page import save_page
from secateur.pages.run_report import RunReport


@dataclass(frozen=True)
class _Point:
    name: str
    cost: Cost
    record: Record


def save_overlay_page(
    reports: Mapping[str, RunReport], path: str | Path, links: Mapping[str, str], runtime: str | None = None
) -> None:
    """`links` lead to the runs' own pages, by the same names as the reports, where they have one."""
    metrics = {report.metric_name for report in reports.values()}
    if len(metrics) > 1:
        raise UsageError(
            f"The runs have different metrics ({', '.join(sorted(metrics))}); lay over runs of one metric."
        )
    metric = metrics.pop()
    found = common_cost(reports, runtime)
    runs = [_Point(name, found.runs[name], report.records[-1]) for name, report in reports.items()]
    dense = [_Point("dense", found.dense[name], reports[name].dense) for name in found.dense]
    points = [*runs, *dense]
    unbeaten = [points[i] for i in frontier([(point.cost.middle, point.record.metric) for point in points])]
    untried = _untried(runs, points, found)
    save_page(
        path,
        "overlay.html.j2",
        metric_name=metric,
        metric=lambda value: metric_text(metric, value),
        found=found,
        rows=[(report, point, links.get(point.name)) for point, report in zip(runs, reports.values(), strict=True)],
        unbeaten=unbeaten,
        untried=untried,
        picture=_picture(runs, dense, unbeaten, untried, found, metric),
        moment=moment_now(),
        version=__version__,
    )


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """The numbers of the points (cost, metric) that no other beats: better in one and at least as good in the other."""
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    best: list[int] = []
    for i in order:
        if not best or points[i][1] > points[best[-1]][1] or points[i] == points[best[-1]]:
            best.append(i)
    return best


def _untried(runs: Sequence[_Point], points: Sequence[_Point], found: CommonCost) -> dict[str, str]:
    """Runs that others beat only in runtimes that they were not tried in themselves, and in which."""
    untried = {}
    for mine in runs:
        beaten_in = {
            point.cost.runtime
            for point in points
            if (mine.cost.middle, mine.record.metric) != (point.cost.middle, point.record.metric)
            if point.cost.middle <= mine.cost.middle and point.record.metric >= mine.record.metric
        }
        if beaten_in and beaten_in.isdisjoint(found.tried_in[mine.name]):
            untried[mine.name] = " or ".join(sorted(beaten_in))
    return untried


def _picture(
    runs: Sequence[_Point],
    dense: Sequence[_Point],
    unbeaten: Sequence[_Point],
    untried: Collection[str],
    found: CommonCost,
    metric: str,
) -> Any:
    figure = new_figure("", found.axis, metric, 520, f"{metric} against {found.title}, with the frontier")
    figure.add_scatter(
        name="frontier",
        x=[point.cost.middle for point in unbeaten],
        y=[point.record.metric for point in unbeaten],
        mode="lines",
        line={"color": COLOURS[2], "width": 2, "dash": "dash", "shape": "hv"},
        hoverinfo="skip",
    )
    others = [point for point in runs if point not in unbeaten]
    for name, members, symbol, colour in (
        ("on the frontier", [point for point in runs if point in unbeaten], "star", COLOURS[0]),
        (
            "beaten by another" if found.everywhere else "not on the frontier",
            [point for point in others if point.name not in untried],
            "circle-open",
            COLOURS[1],
        ),
        (
            "may be faster elsewhere",
            [point for point in others if point.name in untried],
            "square-open",
            COLOURS[3],
        ),
        ("dense", dense, "diamond", GREY),
    ):
        if members:
            costs = [point.cost for point in members]
            figure.add_scatter(
                name=name,
                x=[cost.middle for cost in costs],
                y=[point.record.metric for point in members],
                error_x=error_bars([(cost.low, cost.middle, cost.high) for cost in costs]),
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
    cost = point.cost
    place = [f"{cost.latency} in {cost.runtime}, {cost.precision}"] if cost.latency else []
    lines = [metric_text(metric, point.record.metric), *place, f"{cost.of_dense} × dense"]
    return "<br>".join([f"<b>{as_text(point.name)}</b>", *map(as_text, lines)])
