"""A hardware report for the terminal: tables, a stacked bar of characters, and sentences, in 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from secateur.base import aligned
from secateur.pages.hardware_text import (
    Section,
    about_measuring,
    about_time,
    hardware_sections,
    product_text,
)
from secateur.pages.printed_lines import print_lines, print_title
from secateur.studies import PARTS, Bar, HardwareReport, gpu_facts, published_claims

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
    for section in rest:
        print_section(console, section)
    _print_published_answers(console)
    print_title(console, "The verdict\n")
    published = published_claims()
    for claim in report.claims:
        print_lines(console, [f"- {claim}"])
        if claim.text in published:
            judged = published[claim.text]
            print_lines(console, [f"  On GPUs, as published: {judged.verdict.upper()}. {judged.explanation}"])
    print_lines(console, [""])


def _print_published_answers(console: Console) -> None:
    print_title(console, "On GPUs, as published\n")
    facts = gpu_facts()
    for question in facts.questions:
        print_lines(console, [f"{question[0].upper()}{question[1:]}. {' '.join(facts.answers(question))}"])
    print_lines(console, ["`secateur hardware --published` shows every row with its source.", ""])


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
