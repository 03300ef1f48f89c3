"""The charts of a hardware report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from secateur.bench import KINDS, Timing
from secateur.pages.charts import COLOURS, GREY, PATTERNS, SYMBOLS, interval, new_figure
from secateur.studies import FORMATS, IN_BLOCKS, PARTS, SIDES, Ablation, HardwareReport, percent

__all__ = ["cost_charts", "format_charts", "layer_chart", "network_chart", "time_chart"]


def format_charts(report: HardwareReport) -> list[Any]:
    """Time over the share of zeros, for each batch with the largest weight."""
    size = max((curve.size for curve in report.formats), default=0)
    charts = []
    for batch in dict.fromkeys(curve.batch for curve in report.formats):
        chart = new_figure(f"{size} × {size} weight, batch {batch}", "zeros", "time, × dense")
        for name in FORMATS:
            i, dash = FORMATS.index(IN_BLOCKS.get(name, name)), "dash" if name in IN_BLOCKS else "solid"
            for curve in report.formats:
                if (curve.format, curve.size, curve.batch) == (name, size, batch):
                    timings = [point.timing for point in curve.points]
                    _line(chart, name, [percent(point.sparsity) for point in curve.points], timings, i, dash)
        chart.add_hline(y=1, line={"color": GREY, "dash": "dot"})
        chart.update_xaxes(type="category")  # evenly spaced: most of what matters lies between 90 % and 99 %
        chart.update_yaxes(type="log", dtick="D2")
        charts.append(chart)
    return charts


def time_chart(ablation: Ablation) -> Any:
    bars = ablation.bars[::-1]  # plotly draws from the bottom up
    chart = new_figure(
        "", "milliseconds", "", height=360, label="Milliseconds of each product, by what they are spent on"
    )
    for i, part in enumerate(PARTS):
        chart.add_bar(
            name=part,
            y=[bar.name for bar in bars],
            x=[1e3 * bar.parts.get(part, 0.0) for bar in bars],
            orientation="h",
            marker={"color": COLOURS[i], "pattern": {"shape": PATTERNS[i]}},
            hovertemplate="%{x:.3f} ms " + PARTS[part] + "<extra>%{y}</extra>",
        )
    chart.update_layout(barmode="stack", legend_traceorder="normal")
    return chart


def layer_chart(report: HardwareReport) -> Any:
    chart = new_figure("Half of a layer", "", "time, × the whole layer")
    for i, cut in enumerate(report.layers):
        timings = [cut.timings[side] for side in SIDES]
        chart.add_bar(
            name=f"{cut.kind}, {cut.runtime}",
            x=list(SIDES),
            y=[timing.ratio for timing in timings],
            error_y=interval(timings),
            marker={"color": COLOURS[i % len(COLOURS)], "pattern": {"shape": PATTERNS[i % len(PATTERNS)]}},
            hovertemplate="%{y:.2f} × the whole layer<extra>%{fullData.name}</extra>",
        )
    chart.update_layout(barmode="group")
    return chart


def network_chart(report: HardwareReport) -> Any:
    chart = new_figure("Whole networks", "multiply-adds, × dense", "time, × dense", height=520)
    chart.update_layout(legend_y=-0.3)  # as many lines as it has, below the title of the axis
    chart.add_scatter(
        x=[0, 1], y=[0, 1], mode="lines", name="as the multiply-adds", line={"color": GREY, "dash": "dot"}
    )
    networks = list(dict.fromkeys(cut.network for cut in report.networks))
    for network, runtime in dict.fromkeys((cut.network, cut.runtime) for cut in report.networks):
        cuts = [cut for cut in report.networks if (cut.network, cut.runtime) == (network, runtime)]
        i = networks.index(network)
        _line(
            chart,
            f"{network}, {runtime}",
            [cut.macs_ratio for cut in cuts],
            [cut.timing for cut in cuts],
            i,
            dash="dash" if runtime == "eager" else "solid",
            texts=[cut.version for cut in cuts],
        )
    return chart


def cost_charts(report: HardwareReport) -> list[Any]:
    """Cost of a multiply-add over the count, for each kind of layer."""
    charts = []
    for kind, name in KINDS.items():
        curves = [curve for curve in report.counts if curve.kind == kind]
        if not curves:
            continue
        chart = new_figure(f"Channels of a {name}", "channels", "cost of a multiply-add, × the lowest")
        for i, curve in enumerate(curves):
            chart.add_scatter(
                name=curve.runtime,
                x=list(curve.costs),
                y=list(curve.costs.values()),
                mode="markers",
                marker={"color": COLOURS[i], "symbol": SYMBOLS[i], "size": 7},
                hovertemplate="%{x} channels: %{y:.2f}<extra>%{fullData.name}</extra>",
            )
        chart.update_xaxes(dtick=16)
        chart.update_yaxes(rangemode="tozero")
        charts.append(chart)
    return charts


def _line(
    chart: Any,
    name: str,
    x: Sequence[float] | Sequence[str],
    timings: Sequence[Timing],
    i: int,
    dash: str = "solid",
    texts: Sequence[str] | None = None,
) -> None:
    chart.add_scatter(
        name=name,
        x=list(x),
        y=[timing.ratio for timing in timings],
        error_y=interval(timings),
        text=[f"{text}: {timing}" for text, timing in zip(texts or x, timings, strict=True)],
        hovertemplate="%{text} × dense<extra>%{fullData.name}</extra>",
        mode="lines+markers",
        line={"color": COLOURS[i % len(COLOURS)], "width": 2, "dash": dash},
        marker={"symbol": SYMBOLS[i % len(SYMBOLS)], "size": 8},
    )
