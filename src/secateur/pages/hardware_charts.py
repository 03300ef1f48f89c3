"""The charts of a hardware report."""

from __future__ import annotations

from typing import Any

from secateur.bench import KINDS
from secateur.pages.charts import GREY, add_bars, add_points, interval, new_figure
from secateur.studies import FORMATS, IN_BLOCKS, PARTS, SIDES, Ablation, HardwareReport, percent


def format_charts(report: HardwareReport) -> list[Any]:
    """Time over the share of zeros, for each batch with the largest weight."""
    size = max((curve.size for curve in report.formats), default=0)
    charts = []
    for batch in dict.fromkeys(curve.batch for curve in report.formats):
        chart = new_figure(f"{size} × {size} weight, batch {batch}", "zeros", "time, × dense")
        for curve in sorted(report.formats, key=lambda curve: FORMATS.index(curve.format)):
            if (curve.size, curve.batch) == (size, batch):
                i = FORMATS.index(IN_BLOCKS.get(curve.format, curve.format))
                dash = "dash" if curve.format in IN_BLOCKS else "solid"
                timings = [point.timing for point in curve.points]
                shares = [percent(point.sparsity) for point in curve.points]
                texts = [f"{share}: {timing} × dense" for share, timing in zip(shares, timings, strict=True)]
                ratios = [timing.ratio for timing in timings]
                add_points(chart, curve.format, i, shares, ratios, texts, dash, error_y=interval(timings))
        chart.add_hline(y=1, line={"color": GREY, "dash": "dot"})
        chart.update_xaxes(type="category")  # evenly spaced: most of what matters lies between 90 % and 99 %
        chart.update_yaxes(type="log", dtick="D2")
        charts.append(chart)
    return charts


def time_chart(ablation: Ablation) -> Any:
    bars = ablation.bars[::-1]  # plotly draws from the bottom up
    label = "Milliseconds of each product, by what they are spent on"
    chart = new_figure("", "milliseconds", "", height=360, label=label)
    for i, part in enumerate(PARTS):
        times = [1e3 * bar.parts.get(part, 0.0) for bar in bars]
        texts = [f"{bar.name}: {time:.3f} ms {PARTS[part]}" for bar, time in zip(bars, times, strict=True)]
        add_bars(chart, part, i, times, [bar.name for bar in bars], texts, orientation="h")
    chart.update_layout(barmode="stack", legend_traceorder="normal")
    return chart


def side_chart(report: HardwareReport) -> Any:
    chart = new_figure("Half of a layer", "", "time, × the whole layer")
    for i, cut in enumerate(report.layers):
        timings = [cut.timings[side] for side in SIDES]
        texts = [f"{timing} × the whole layer" for timing in timings]
        ratios = [timing.ratio for timing in timings]
        add_bars(chart, f"{cut.kind}, {cut.runtime}", i, SIDES, ratios, texts, error_y=interval(timings))
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
        timings = [cut.timing for cut in cuts]
        add_points(
            chart,
            f"{network}, {runtime}",
            networks.index(network),
            [cut.macs_ratio for cut in cuts],
            [timing.ratio for timing in timings],
            [f"{cut.version}: {cut.timing} × dense" for cut in cuts],
            "dash" if runtime == "eager" else "solid",
            error_y=interval(timings),
        )
    return chart


def cost_charts(report: HardwareReport) -> list[Any]:
    """Cost of a multiply-add over the count, for each kind of layer."""
    charts = []
    for kind in dict.fromkeys(curve.kind for curve in report.counts):
        chart = new_figure(f"Channels of a {KINDS[kind]}", "channels", "cost of a multiply-add, × the lowest")
        for i, curve in enumerate(curve for curve in report.counts if curve.kind == kind):
            texts = [f"{count} channels: {cost:.2f}" for count, cost in curve.costs.items()]
            add_points(chart, curve.runtime, i, curve.costs, curve.costs.values(), texts, mode="markers")
        chart.update_xaxes(dtick=16)
        chart.update_yaxes(rangemode="tozero")
        charts.append(chart)
    return charts
