"""A hardware report for the terminal: tables, a stacked bar of characters, and sentences, in 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console

from secateur.base import aligned
from secateur.bench import MULTIPLES, Timing
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
from secateur.studies import PARTS, PUBLISHED, SIDES, Bar, FormatCurve, HardwareReport

__all__ = ["bar_chart", "print_hardware"]

GLYPHS = dict(zip(PARTS, "▪█▓▒░╱", strict=True))
BAR_WIDTH = 48


def print_hardware(report: HardwareReport, console: Console) -> None:
    out = _Writer(console)
    out.title("What pruning buys on this machine")
    out.sentences(about_measuring(report))
    out.title("1. Zeros anywhere in a weight")
    out.sentences(about_formats(report))
    out.table("Time at 90 % zeros, × dense", _format_table(report.formats, _at_90))
    out.table(
        "Break-even: faster than dense from this share of zeros on",
        _format_table(report.formats, break_even_text),
    )
    for ablation in report.ablations:
        out.table(f"Where the time goes: {product_text(ablation)}", bar_chart(ablation.bars))
        out.sentences(about_time(ablation))
    out.title("2. 2:4 and sparse tensor cores")
    out.sentences(about_tensor_cores(report))
    if report.tensor_cores.missing:
        out.sentences(["Published speed-ups, above 1 is faster:"])
        out.sentences([f"- {each.speedup} for {each.what}: {each.source}" for each in PUBLISHED])
    out.title("3. Channels removed")
    out.sentences([*about_layers(report), *about_networks(report)])
    out.table("Half of a layer, × the whole layer", _layer_table(report))
    out.table("Whole networks: time (and multiply-adds), × dense", _network_table(report))
    out.title("4. Which number of channels stays")
    out.sentences(about_counts(report))
    out.table("Cost of a multiply-add, × multiples of 32, by the largest divisor of the count", _count_table(report))
    out.title("The verdict")
    out.sentences([f"- {claim}" for claim in report.claims])


class _Writer:
    def __init__(self, console: Console) -> None:
        self._console = console

    def title(self, text: str) -> None:
        self._console.print(text, style="bold", markup=False, highlight=False)
        self._console.print()

    def sentences(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._console.print(line, markup=False, highlight=False)
        self._console.print()

    def table(self, title: str, lines: Sequence[str]) -> None:
        for line in (title, *lines):
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._console.print()


def bar_chart(bars: Sequence[Bar]) -> list[str]:
    """One line for each bar, to scale, then what the characters mean with the numbers behind them."""
    longest = max(bar.seconds for bar in bars)
    label = max(len(bar.name) for bar in bars)
    lines = [f"{bar.name:<{label}}  {_bar(bar, longest)} {1e3 * bar.seconds:.2f} ms" for bar in bars]
    short = {"call and output": "call", "index decode": "index"}
    rows = [["milliseconds", *(f"{GLYPHS[part]} {short.get(part, part)}" for part in PARTS)]]
    for bar in bars:
        rows.append([bar.name, *(f"{1e3 * bar.parts[part]:.2f}" if part in bar.parts else "–" for part in PARTS)])
    return [*lines, "", *aligned(rows, right=range(1, len(PARTS) + 1))]


def _bar(bar: Bar, longest: float) -> str:
    text, end = "", 0.0
    for part, seconds in bar.parts.items():
        end += seconds
        text += GLYPHS[part] * (round(BAR_WIDTH * end / longest) - len(text))
    return text


def _format_table(curves: Sequence[FormatCurve], cell: Callable[[FormatCurve], str]) -> list[str]:
    columns = list(dict.fromkeys((curve.size, curve.batch) for curve in curves))
    found = {(curve.format, curve.size, curve.batch): curve for curve in curves}
    rows = [["weight", *(f"{size}²" for size, _ in columns)], ["batch", *(str(batch) for _, batch in columns)]]
    for name in dict.fromkeys(curve.format for curve in curves):
        rows.append([name, *(cell(found[name, size, batch]) for size, batch in columns)])
    return aligned(rows, right=range(1, len(columns) + 1))


def _at_90(curve: FormatCurve) -> str:
    point = curve.at(0.9)
    if point is None:
        return "–"
    return f"{point.timing.ratio:.2f}" if point.timing.ratio < 10 else f"{point.timing.ratio:.0f}"


def _layer_table(report: HardwareReport) -> list[str]:
    rows = [["layer", "width", "runtime", *SIDES, "control"]]
    for cut in report.layers:
        cells = [_plus_minus(timing) for timing in (*(cut.timings[side] for side in SIDES), cut.control)]
        rows.append([cut.kind, str(cut.width), cut.runtime, *cells])
    return aligned(rows)


def _network_table(report: HardwareReport) -> list[str]:
    versions = list(dict.fromkeys(cut.version for cut in report.networks))
    rows = [["network", "runtime", *versions, "control"]]
    for network, runtime in dict.fromkeys((cut.network, cut.runtime) for cut in report.networks):
        cuts = [cut for cut in report.networks if (cut.network, cut.runtime) == (network, runtime)]
        cells = [f"{cut.timing.ratio:.2f} ({cut.macs_ratio:.2f})" for cut in cuts]
        rows.append([network, runtime, *cells, _plus_minus(cuts[0].control)])
    return aligned(rows)


def _count_table(report: HardwareReport) -> list[str]:
    rows = [["layer", "runtime", *("odd" if m == 1 else str(m) for m in MULTIPLES), "keep multiples of"]]
    for curve in report.counts:
        cells = [f"{penalty:.2f}" for penalty in curve.penalties.values()]
        rows.append([curve.kind, curve.runtime, *cells, str(curve.multiple_of)])
    return aligned(rows, right=range(2, len(MULTIPLES) + 3))


def _plus_minus(timing: Timing) -> str:
    """Half of the interval: the whole of it takes a third of a line."""
    return f"{timing.ratio:.2f} ±{(timing.high - timing.low) / 2:.2f}"
