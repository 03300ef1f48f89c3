"""A hardware report as one page that needs no network: the verdict first, then a chart and a table for each part."""

from __future__ import annotations

from html import escape
from pathlib import Path

from secateur.bench import MULTIPLES
from secateur.pages.hardware_charts import cost_charts, format_charts, layer_chart, network_chart, time_chart
from secateur.pages.hardware_words import (
    about_counts,
    about_formats,
    about_layers,
    about_measuring,
    about_networks,
    about_tensor_cores,
    about_time,
    break_even_text,
    product_text,
)
from secateur.pages.page import charts, details, paragraphs, save_page, table
from secateur.studies import PUBLISHED, SIDES, Ablation, HardwareReport

__all__ = ["save_hardware_page"]


def save_hardware_page(report: HardwareReport, path: str | Path) -> None:
    title = "What pruning buys on this machine"
    body = [
        f"<h1>{title}</h1>",
        paragraphs(about_measuring(report)),
        "<h2>The verdict</h2>",
        _verdicts(report),
        "<h2>1. Zeros anywhere in a weight</h2>",
        paragraphs(about_formats(report)),
        charts(format_charts(report)),
        "<h3>Break-even: faster than dense from this share of zeros on</h3>",
        _break_even_table(report),
        *(_where_the_time_goes(ablation) for ablation in report.ablations),
        "<h2>2. 2:4 and sparse tensor cores</h2>",
        paragraphs(about_tensor_cores(report)),
        "<p>Published speed-ups, above 1 is faster:</p>",
        _published(),
        "<h2>3. Channels removed</h2>",
        paragraphs([*about_layers(report), *about_networks(report)]),
        charts([layer_chart(report), network_chart(report)]),
        details("All numbers, with their intervals", _layer_table(report), _network_table(report)),
        "<h2>4. Which number of channels stays</h2>",
        paragraphs(about_counts(report)),
        charts(cost_charts(report)),
        "<h3>Cost of a multiply-add, × multiples of 32, by the largest divisor of the count</h3>",
        _count_table(report),
    ]
    save_page(path, title, body)


def _where_the_time_goes(ablation: Ablation) -> str:
    return (
        f"<h3>Where the time goes: {escape(product_text(ablation))}</h3>"
        f"{charts([time_chart(ablation)])}{paragraphs(about_time(ablation))}"
    )


def _verdicts(report: HardwareReport) -> str:
    names = {True: "held", False: "failed", None: "open"}
    cards = [
        f'<li class="{names[claim.held]}"><b>{escape(claim.verdict)}</b> “{escape(claim.text)}”'
        f"<br><span>{escape(claim.explanation)}</span></li>"
        for claim in report.claims
    ]
    return f'<ul class="verdicts">{"".join(cards)}</ul>'


def _published() -> str:
    rows = [
        f'<li><b>{escape(each.speedup)}</b> for {escape(each.what)} (<a href="{escape(each.source)}">source</a>)</li>'
        for each in PUBLISHED
    ]
    return f"<ul>{''.join(rows)}</ul>"


def _break_even_table(report: HardwareReport) -> str:
    columns = list(dict.fromkeys((curve.size, curve.batch) for curve in report.formats))
    found = {(curve.format, curve.size, curve.batch): curve for curve in report.formats}
    head = ["", *(f"{size} × {size}, batch {batch}" for size, batch in columns)]
    names = dict.fromkeys(curve.format for curve in report.formats)
    return table(head, [[name, *(break_even_text(found[name, *col]) for col in columns)] for name in names])


def _layer_table(report: HardwareReport) -> str:
    rows = [
        [
            f"{cut.kind}, {cut.width} channels",
            cut.runtime,
            *(str(cut.timings[side]) for side in SIDES),
            str(cut.control),
        ]
        for cut in report.layers
    ]
    return table(["half of a layer", "runtime", *SIDES, "null control"], rows)


def _network_table(report: HardwareReport) -> str:
    rows = [
        [cut.network, cut.runtime, cut.version, f"{cut.macs_ratio:.2f}", str(cut.timing), str(cut.control)]
        for cut in (*report.networks, *report.rounding)
    ]
    return table(["network", "runtime", "version", "multiply-adds", "time", "null control"], rows)


def _count_table(report: HardwareReport) -> str:
    rows = [
        [
            curve.kind,
            curve.runtime,
            *(f"{penalty:.2f}" for penalty in curve.penalties.values()),
            str(curve.multiple_of),
            str(curve.control),
        ]
        for curve in report.counts
    ]
    head = ["layer", "runtime", *("odd" if m == 1 else str(m) for m in MULTIPLES), "keep multiples of", "null control"]
    return table(head, rows)
