"""A hardware report for the terminal: tables, a stacked bar of characters, and sentences, in 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from secateur.base import aligned
from secateur.pages.consoles import print_lines, print_title
from secateur.pages.hardware_text import (
    Section,
    about_measuring,
    about_time,
    hardware_sections,
    product_text,
)
from secateur.studies import PARTS, PUBLISHED, Bar, HardwareReport

GLYPHS = dict(zip(PARTS, "▪█▓▒░╱", strict=True))
BAR_WIDTH = 48


def print_hardware(report: HardwareReport, console: Console) -> None:
    print_title(console, "What pruning buys on this machine\n")
    print_lines(console, [*about_measuring(report), ""])
    formats, tensor_cores, *rest = hardware_sections(report, narrow=True)
    print_section(console, formats)
    for ablation in report.ablations:
        chart = [f"Where the time goes: {product_text(ablation)}", *bar_chart(ablation.bars), ""]
        print_lines(console, chart, soft_wrap=True)
        print_lines(console, [*about_time(ablation), ""])
    print_section(console, tensor_cores)
    if report.tensor_cores.missing:
        published = [f"- {each.speedup} for {each.what}: {each.source}" for each in PUBLISHED]
        print_lines(console, ["Published speed-ups, above 1 is faster:", "", *published, ""])
    for section in rest:
        print_section(console, section)
    print_title(console, "The verdict\n")
    print_lines(console, [*(f"- {claim}" for claim in report.claims), ""])


def print_section(console: Console, section: Section) -> None:
    print_title(console, f"{section.title}\n")
    print_lines(console, [*section.sentences, ""])
    for table in section.tables:
        print_lines(console, [table.title, *aligned(table.rows, right=table.numbers), ""], soft_wrap=True)


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
