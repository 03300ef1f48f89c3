"""A hardware report as one page that needs no network: the verdict first, then a chart and a table for each part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from secateur.atomic import write_text
from secateur.hardware import explain
from secateur.hardware.ablation import Ablation
from secateur.hardware.alignment import MULTIPLES
from secateur.hardware.report import HardwareReport
from secateur.hardware.structured import SIDES
from secateur.hardware.tensor_cores import PUBLISHED
from secateur.report.hardware_charts import cost_charts, format_charts, layer_chart, network_chart, time_chart

__all__ = ["save_hardware_page"]


def save_hardware_page(report: HardwareReport, path: str | Path) -> None:
    from plotly.offline import get_plotlyjs

    title = "What pruning buys on this machine"
    body = "\n".join(
        [
            f"<h1>{title}</h1>",
            _paragraphs(explain.about_measuring(report)),
            "<h2>The verdict</h2>",
            _verdicts(report),
            "<h2>1. Zeros anywhere in a weight, in standard formats</h2>",
            _paragraphs(explain.about_formats(report)),
            _charts(format_charts(report)),
            "<h3>Break-even: faster than dense from this share of zeros on</h3>",
            _break_even_table(report),
            *(_where_the_time_goes(ablation) for ablation in report.ablations),
            "<h2>2. 2:4 and sparse tensor cores</h2>",
            _paragraphs(explain.about_tensor_cores(report)),
            "<p>Published speed-ups, above 1 is faster:</p>",
            _published(),
            "<h2>3. Channels removed</h2>",
            _paragraphs([*explain.about_layers(report), *explain.about_networks(report)]),
            _charts([layer_chart(report), network_chart(report)]),
            "<details><summary>All numbers, with their intervals</summary>",
            _layer_table(report),
            _network_table(report),
            "</details>",
            "<h2>4. Which number of channels stays</h2>",
            _paragraphs(explain.about_counts(report)),
            _charts(cost_charts(report)),
            "<h3>Cost of a multiply-add, × multiples of 32, by the largest divisor of the count</h3>",
            _count_table(report),
        ]
    )
    write_text(path, _PAGE.format(title=title, style=_STYLE, plotly=get_plotlyjs(), body=body, script=_THEME))


def _paragraphs(sentences: Iterable[str]) -> str:
    return "\n".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)


def _where_the_time_goes(ablation: Ablation) -> str:
    return (
        f"<h3>Where the time goes: {escape(explain.product_text(ablation))}</h3>"
        f"{_charts([time_chart(ablation)])}{_paragraphs(explain.about_time(ablation))}"
    )


def _verdicts(report: HardwareReport) -> str:
    names = {True: "held", False: "failed", None: "open"}
    cards = [
        f'<li class="{names[claim.held]}"><b>{escape(claim.verdict)}</b> “{escape(claim.text)}”'
        f"<br><span>{escape(explain.claim_text(claim))}</span></li>"
        for claim in report.claims
    ]
    return f'<ul class="verdicts">{"".join(cards)}</ul>'


def _published() -> str:
    rows = [
        f'<li><b>{escape(each.speedup)}</b> for {escape(each.what)} (<a href="{escape(each.source)}">source</a>)</li>'
        for each in PUBLISHED
    ]
    return f"<ul>{''.join(rows)}</ul>"


def _charts(figures: Iterable[Any]) -> str:
    config = {"displaylogo": False, "displayModeBar": False, "responsive": True}
    divs = [figure.to_html(full_html=False, include_plotlyjs=False, config=config) for figure in figures]
    return '<div class="charts">' + "".join(f'<div class="chart">{div}</div>' for div in divs) + "</div>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return f'<div class="table"><table><thead>{line("th", head)}</thead><tbody>{body}</tbody></table></div>'


def _break_even_table(report: HardwareReport) -> str:
    columns = list(dict.fromkeys((curve.size, curve.batch) for curve in report.formats))
    found = {(curve.format, curve.size, curve.batch): curve for curve in report.formats}
    head = ["", *(f"{size} × {size}, batch {batch}" for size, batch in columns)]
    names = dict.fromkeys(curve.format for curve in report.formats)
    return _table(head, [[name, *(explain.break_even_text(found[name, *col]) for col in columns)] for name in names])


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
    return _table(["half of a layer", "runtime", *SIDES, "null control"], rows)


def _network_table(report: HardwareReport) -> str:
    rows = [
        [cut.network, cut.runtime, cut.version, f"{cut.macs_ratio:.2f}", str(cut.timing), str(cut.control)]
        for cut in (*report.networks, *report.rounding)
    ]
    return _table(["network", "runtime", "version", "multiply-adds", "time", "null control"], rows)


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
    return _table(head, rows)


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
<script>{plotly}</script>
</head>
<body>
<main>
{body}
</main>
<script>{script}</script>
</body>
</html>
"""

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --faint: #d5d5d5; --card: #f4f4f4; --link: #0072B2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #161616; --faint: #444; --card: #232323; --link: #56B4E9; }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 70rem; margin: auto; padding: 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--faint); }
p { max-width: 46rem; margin: 0.5rem 0; }
a { color: var(--link); }
.verdicts { list-style: none; padding: 0; display: grid; gap: 0.75rem;
  grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); }
.verdicts li { background: var(--card); border-left: 6px solid #999; padding: 0.6rem 0.8rem; }
.verdicts b { text-transform: uppercase; font-size: 0.8rem; letter-spacing: 0.04em; display: block; }
.verdicts .held { border-color: #0072B2; }
.verdicts .failed { border-color: #D55E00; }
.verdicts span { font-size: 0.9rem; }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); }
.chart { min-width: 0; }
.table { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 0.25rem 0.7rem; border-bottom: 1px solid var(--faint); text-align: left; }
td { white-space: nowrap; }
summary { cursor: pointer; }
"""

# The charts follow the page: their background is clear, and their ink is that of the text. Each was drawn before those
# beside it were there, so their widths are set once all are.
_THEME = """
const scheme = matchMedia('(prefers-color-scheme: dark)');
function paint() {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue('--ink').trim(), faint = style.getPropertyValue('--faint').trim();
  for (const chart of document.querySelectorAll('.js-plotly-plot')) {
    Plotly.relayout(chart, {'font.color': ink, 'xaxis.gridcolor': faint, 'yaxis.gridcolor': faint,
      'xaxis.zerolinecolor': faint, 'yaxis.zerolinecolor': faint});
    Plotly.Plots.resize(chart);
  }
}
scheme.addEventListener('change', paint);
paint();
"""
