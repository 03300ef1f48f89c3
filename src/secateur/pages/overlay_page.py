"""Several runs over one another: what each kept of the metric against what it costs, and which no other beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from secateur.base import UsageError, metric_text, short_count
from secateur.bench import Timing
from secateur.loop import Record
from secateur.pages.charts import COLOURS, GREY, as_text, interval, metric_interval, new_figure
from secateur.pages.page import chart, paragraphs, save_page
from secateur.pages.run_report import RunReport

__all__ = ["frontier", "save_overlay_page"]

DENSE = "dense"


@dataclass(frozen=True)
class _Point:
    name: str
    cost: Timing
    """Of a count, with an interval of no width."""
    record: Record

    @property
    def metric(self) -> float:
        return self.record.metric


@dataclass(frozen=True)
class _Cost:
    """What the runs are compared by: the same for all of them."""

    name: str
    by_run: Mapping[str, Timing]


def save_overlay_page(reports: Mapping[str, RunReport], path: str | Path, links: Mapping[str, str]) -> None:
    """`links` lead to the runs' own pages, by the same names as the reports."""
    metrics = {report.metric_name for report in reports.values()}
    if len(metrics) > 1:
        raise UsageError(
            f"The runs have different metrics ({', '.join(sorted(metrics))}); lay over runs of one metric."
        )
    metric = metrics.pop()
    cost = _common_cost(reports)
    points = [_Point(name, cost.by_run[name], report.final) for name, report in reports.items()]
    dense_metrics = {report.dense.metric: report.dense for report in reports.values()}
    dense = [_Point(DENSE, _exactly(1.0), record) for record in dense_metrics.values()]
    everything = [*points, *dense]
    unbeaten = [everything[i] for i in frontier([(point.cost.ratio, point.metric) for point in everything])]
    title = f"{metric.capitalize()} against {cost.name}: {', '.join(reports)}"
    body = [
        f"<h1>{escape(metric.capitalize())} against {escape(cost.name)}</h1>",
        paragraphs([_about(unbeaten, cost)]),
        chart(_picture(points, dense, unbeaten, cost, metric)),
        _table(reports, cost, {point.name for point in points if point in unbeaten}, links, metric),
    ]
    save_page(path, title, body)


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """The numbers of the points (cost, metric) that no other beats: better in one and at least as good in the other."""
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    best: list[int] = []
    for i in order:
        if not best or points[i][1] > points[best[-1]][1] or points[i] == points[best[-1]]:
            best.append(i)
    return best


def _common_cost(reports: Mapping[str, RunReport]) -> _Cost:
    """The first latency that all runs have under the same conditions; else their multiply-adds; else their sizes."""
    first = next(iter(reports.values()))
    for latency in first.latencies:
        same = {
            name: item.pruned
            for name, report in reports.items()
            for item in report.latencies
            if item.conditions == latency.conditions
        }
        if same.keys() == reports.keys():
            return _Cost(f"latency in {latency.where}", same)
    macs = {name: report.macs_ratio for name, report in reports.items()}
    known = {name: _exactly(ratio) for name, ratio in macs.items() if ratio is not None}
    if known.keys() == reports.keys():
        return _Cost("MACs", known)
    sizes = {
        name: _exactly(report.final.size.parameters / max(report.dense.size.parameters, 1))
        for name, report in reports.items()
    }
    return _Cost("parameters", sizes)


def _exactly(ratio: float) -> Timing:
    return Timing(ratio, ratio, ratio, ratio, 0)


def _about(unbeaten: Sequence[_Point], cost: _Cost) -> str:
    names = ", ".join(dict.fromkeys(point.name for point in unbeaten))
    return (
        f"Up and to the left is better; {cost.name} is a multiple of each run's own dense model. "
        f"On the frontier, where no other is better in one and at least as good in the other: {names}. "
        "Where intervals overlap, the order may be chance."
    )


def _picture(
    points: Sequence[_Point], dense: Sequence[_Point], unbeaten: Sequence[_Point], cost: _Cost, metric: str
) -> Any:
    label = f"{metric} against {cost.name}, with the frontier"
    kind = cost.name.partition(" ")[0]  # where it was measured is in the title, and a phone has no room for both
    figure = new_figure("", f"{kind}, × dense", as_text(metric), height=520, label=label)
    figure.add_scatter(
        name="frontier",
        x=[point.cost.ratio for point in unbeaten],
        y=[point.metric for point in unbeaten],
        mode="lines",
        line={"color": COLOURS[2], "width": 2, "dash": "dash", "shape": "hv"},
        hoverinfo="skip",
    )
    for name, members, symbol, colour in (
        ("on the frontier", [point for point in points if point in unbeaten], "star", COLOURS[0]),
        ("beaten by another", [point for point in points if point not in unbeaten], "circle-open", COLOURS[1]),
        (DENSE, dense, "diamond", GREY),
    ):
        if members:
            figure.add_scatter(
                name=name,
                x=[point.cost.ratio for point in members],
                y=[point.metric for point in members],
                error_x=interval([point.cost for point in members]),
                error_y=metric_interval([point.record for point in members]),
                text=[as_text(point.name) for point in members] if name != DENSE else None,
                hovertext=[_hover(point, metric) for point in members],
                hovertemplate="%{hovertext}<extra></extra>",
                mode="markers+text",
                textposition="top center",
                marker={"color": colour, "symbol": symbol, "size": 13, "line": {"width": 2, "color": colour}},
            )
    figure.update_layout(margin_t=30)
    if metric == "accuracy":
        figure.update_yaxes(tickformat=".1%")
    return figure


def _hover(point: _Point, metric: str) -> str:
    return f"<b>{as_text(point.name)}</b><br>{metric_text(metric, point.metric)}<br>{_cost_text(point.cost)} × dense"


def _cost_text(cost: Timing) -> str:
    return str(cost) if cost.rounds else f"{cost.ratio:.2f}"


def _table(
    reports: Mapping[str, RunReport], cost: _Cost, unbeaten: set[str], links: Mapping[str, str], metric: str
) -> str:
    head = ["run", f"{metric} before", "after", f"{cost.name}, × dense", "parameters", "not zero", "MACs", "frontier"]
    rows = []
    for name, report in reports.items():
        size = report.final.size
        cells = [
            metric_text(metric, report.dense.metric),
            metric_text(metric, report.final.metric),
            _cost_text(cost.by_run[name]),
            f"{size.parameters:,}",
            f"{size.nonzeros:,}",
            short_count(report.macs[1]) if report.macs else "–",
            "yes" if name in unbeaten else "",
        ]
        link = f'<a href="{escape(links[name])}">{escape(name)}</a>'
        rows.append(f"<tr><td>{link}</td>" + "".join(f'<td class="number">{escape(c)}</td>' for c in cells) + "</tr>")
    titles = "".join(f"<th{' class=number' if i else ''}>{escape(text)}</th>" for i, text in enumerate(head))
    return (
        f'<div class="table" tabindex="0"><table><thead><tr>{titles}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
