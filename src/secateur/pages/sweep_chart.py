"""The chart of a sweep: what each version kept of the metric against what it costs, by one cost or another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from secateur.base import byte_text, metric_text, short_count
from secateur.pages.charts import COLOURS, GREY, as_text, error_bars, metric_axis, new_figure
from secateur.pages.sweep_points import Axis, Point, Points

_MOST_LABELS = 25
"""More would cover one another."""
_LABELS_TURN = 0.8
"""From this share of the width on they stand to the left of their points, or the edge would cut them."""


@dataclass(frozen=True)
class View:
    """What the chart shows by one cost, as `Plotly.update` takes it."""

    name: str
    places: Mapping[str, Any]
    """Of all points, trace by trace."""
    layout: Mapping[str, Any]


def view_by(axis: Axis, points: Points) -> View:
    traces = [axis.frontier(points), *points.traces]
    costs = [[axis.value(point) for point in trace] for trace in traces]
    known = [cost for cost in chain(*costs) if cost is not None] or [0.0]
    edge = _LABELS_TURN * max(known) + (1 - _LABELS_TURN) * min(known)
    places = {
        "x": costs,
        "y": [[point.metric for point in trace] for trace in traces],
        "textposition": [[f"bottom {'left' if (cost or 0) > edge else 'right'}" for cost in trace] for trace in costs],
    }
    ticks = {f"xaxis.{option}": axis.ticks.get(option, "") for option in ("tickformat", "ticksuffix")}
    all_of_it = {"xaxis.autorange": True, "yaxis.autorange": True}
    return View(axis.name, places, {"xaxis.title.text": axis.title, **ticks, **all_of_it})


def sweep_chart(view: View, points: Points, metric: str) -> Any:
    """As the view shows it. The frontier goes around its points: it changes with the cost, and they stay."""
    figure = new_figure("", "", metric, 520, f"{metric} against what the versions cost, with the frontier")
    figure.add_scatter(
        name="frontier",
        mode="lines+markers",
        line={"color": COLOURS[2], "width": 2, "dash": "dash", "shape": "hv"},
        marker={"color": COLOURS[2], "symbol": "circle-open", "size": 18, "line": {"width": 2}},
        hoverinfo="skip",
    )
    *runs, versions, dense = points.traces
    for trace in runs:
        _add(figure, "one seed", trace, metric, marker={"color": COLOURS[0], "size": 6, "opacity": 0.5})
    _add(figure, "mean of the seeds" if runs else "version", versions, metric, **_look(versions))
    _add(figure, "dense", dense, metric, marker={"color": GREY, "symbol": "diamond", "size": 13})
    for i, drawn in enumerate(figure.data):
        drawn.update({what: of_traces[i] for what, of_traces in view.places.items()})
    figure.update_layout(dict(view.layout), margin_t=30, hovermode="closest")
    metric_axis(figure, metric, digits=1)
    return figure


def _look(versions: Sequence[Point]) -> dict[str, Any]:
    look = {"marker": {"color": COLOURS[0], "size": 7}, "error_y": error_bars([version.span for version in versions])}
    if len(versions) > _MOST_LABELS:
        return look
    names = [as_text(version.name) for version in versions]
    return {**look, "mode": "markers+text", "text": names, "marker": {"color": COLOURS[0], "size": 11}}


def _add(figure: Any, name: str, trace: Sequence[Point], metric: str, **look: Any) -> None:
    """The script of the page follows the links."""
    figure.add_scatter(
        name=name,
        hovertext=[_hover(point, metric) for point in trace],
        hovertemplate="%{hovertext}<extra></extra>",
        customdata=[point.link for point in trace],
        **{"mode": "markers", **look},
    )


def _hover(point: Point, metric: str) -> str:
    costs = point.costs
    lines = [
        f"seed{'s' * (len(point.seeds) > 1)} {', '.join(map(str, point.seeds))}" if point.seeds else "",
        f"{metric} {_spread(point, metric)}",
        point.latency,
        f"{point.of_dense} × dense" if point.of_dense else "",
        f"{byte_text(costs.size)} in a file",
        f"{short_count(costs.macs)} MACs" if costs.macs is not None else "",
        f"{short_count(costs.params)} parameters",
    ]
    return "<br>".join([f"<b>{as_text(point.name)}</b>", *(as_text(line) for line in lines if line)])


def _spread(point: Point, metric: str) -> str:
    low, middle, high = (metric_text(metric, value) for value in point.span)
    return middle if len(point.seeds) < 2 else f"{middle}, from {low} to {high}"
