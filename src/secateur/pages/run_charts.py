"""The charts of a run's page."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from secateur.base import metric_text
from secateur.bench import NULL_CONTROL
from secateur.loop import WeightHistogram
from secateur.pages.charts import (
    COLOURS,
    GREY,
    add_bars,
    add_points,
    as_text,
    interval,
    metric_axis,
    metric_interval,
    new_figure,
    where,
)
from secateur.pages.curve import epochs_from_cut
from secateur.pages.run_report import RunReport

MOST_LETTERS = 24
# By phase: the name in the legend, and which of the colours and symbols.
_PHASES = {
    "before": ("dense", 2),
    "train": ("training", 2),
    "cut": ("right after a cut", 1),
    "repair": ("repaired", 3),
    "fine-tune": ("recovering", 0),
}


def accuracy_chart(report: RunReport) -> Any:
    """The metric over the run, with what the model may lose and still count as recovered."""
    metric = report.metric_name
    label = f"{metric.capitalize()} through training, cut and recovery"
    epochs = epochs_from_cut(report)
    figure = new_figure("", "epochs from the cut" if report.pruned else "epochs", metric, 360, label)
    figure.add_scatter(
        x=epochs,
        y=[record.metric for record in report.records],
        mode="lines",
        line={"color": GREY, "width": 1.5},
        hoverinfo="skip",
        showlegend=False,
    )
    for phase, (name, look) in _PHASES.items():
        points = [(x, record) for x, record in zip(epochs, report.records, strict=True) if record.phase == phase]
        if points:
            places, records = zip(*points, strict=True)
            texts = [as_text(f"{r.stop}: {metric_text(metric, r.metric)}{r.pruned}") for r in records]
            metrics = [record.metric for record in records]
            add_points(figure, name, look, places, metrics, texts, mode="markers", error_y=metric_interval(records))
    if report.pruned:
        dense = report.before
        figure.add_hrect(y0=dense - report.tolerance, y1=dense, fillcolor=COLOURS[2], opacity=0.15, line_width=0)
        figure.add_hline(y=dense, line={"color": COLOURS[2], "dash": "dot"})
    metric_axis(figure, metric)
    return figure


def layer_chart(report: RunReport) -> Any:
    """A bar for each layer: the share that is left, and the share that went."""
    kept, gone = ("kept", "removed") if report.unit == "channels" else ("not zero", "zero")
    what = "output channels" if report.unit == "channels" else "weights"
    layers = list(report.layers.items())[::-1]  # plotly draws from the bottom up
    rows = list(range(len(layers)))
    figure = new_figure("", what, "", 90 + 24 * len(layers), f"{what} left of each layer")
    texts = [f"{as_text(name)}<br>{left:,} of {total:,} {report.unit} left" for name, (left, total) in layers]
    shares = [left / total for _, (left, total) in layers]
    add_bars(figure, kept, 0, shares, rows, texts, orientation="h")
    add_bars(figure, gone, 1, [1 - share for share in shares], rows, texts, orientation="h")
    figure.update_layout(
        barmode="stack",
        bargap=0.25,
        legend={"y": 1, "yanchor": "bottom", "traceorder": "normal"},
        margin={"t": 40, "r": 30},
    )
    figure.update_xaxes(tickformat=".0%", range=[0, 1])
    figure.update_yaxes(
        tickvals=rows, ticktext=[_shortened(name) for name, _ in layers], tickfont={"size": 11}, zeroline=False
    )
    return figure


def _shortened(name: str) -> str:
    """The end tells layers apart; a long name would leave a phone no room for the bars."""
    return as_text(name if len(name) <= MOST_LETTERS else "…" + name[-MOST_LETTERS:].lstrip("."))


def latency_chart(report: RunReport) -> Any:
    """Ratios to the dense model with their intervals; a difference counts only outside the null control's."""
    label = "Time of a call as a multiple of the dense model's, by runtime and batch"
    items = report.measurements[::-1]
    places = [as_text(where(item)) for item in items]
    pruned = [item.comparison[report.measured_name] for item in items]
    figure = new_figure("", "time, × dense", "", 150 + 60 * len(items), label)
    for name, timings, look, shift in (
        ("pruned", pruned, 0, 0.14),
        (NULL_CONTROL, [item.comparison.control for item in items], 3, -0.14),
    ):
        texts = [f"{place}: {timing} × dense" for place, timing in zip(places, timings, strict=True)]
        ratios, rows = [timing.ratio for timing in timings], [row + shift for row in range(len(items))]
        bars = {**interval(timings), "thickness": 2, "width": 6}
        add_points(figure, name, look, ratios, rows, texts, mode="markers", error_x=bars)
    figure.add_vline(x=1, line={"color": GREY, "dash": "dot"}, annotation_text="dense", annotation_position="top")
    figure.update_layout(margin_t=30, legend={"y": -0.35 if len(items) < 3 else -0.22})
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(
        tickvals=list(range(len(items))),
        ticktext=places,
        range=[-0.5, len(items) - 0.5],
        zeroline=False,
    )
    return figure


def histogram_chart(histogram: WeightHistogram) -> Any:
    """Bins of equal width, because they are even in the logarithm; the first one reaches down to zero."""
    label = "Magnitudes of the dense model's weights, kept and removed"
    figure = new_figure("", "magnitude before the cut", "weights", height=360, label=label)
    bounds = [f"from {low:.3g} to {high:.3g}" for low, high in pairwise(histogram.edges)]
    for i, (name, counts) in enumerate((("kept", histogram.kept), ("removed", histogram.removed))):
        texts = [f"{count:,} weights {bound}" for count, bound in zip(counts, bounds, strict=True)]
        add_bars(figure, name, i, [n + 0.5 for n in range(len(counts))], counts, texts, width=1)
    low, high = histogram.edges[1], histogram.edges[-1]
    bins_a_decade = (len(histogram.kept) - 1) / math.log10(high / low)

    def place(magnitude: float) -> float:
        return 1 + bins_a_decade * math.log10(magnitude / low) if magnitude > low else 0.5

    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    figure.update_layout(barmode="stack", bargap=0, legend_traceorder="normal", margin_t=30)
    figure.update_xaxes(tickvals=[place(10.0**n) for n in powers], ticktext=[f"{10.0**n:g}" for n in powers])
    if not math.isnan(histogram.threshold):
        figure.add_vline(
            x=place(histogram.threshold),
            line={"color": GREY, "width": 2, "dash": "dash"},
            annotation_text=f"threshold {histogram.threshold:.3g}",
            annotation_position="top",
        )
    return figure
