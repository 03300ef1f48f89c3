"""A report on a GPU for the terminal, in 80 columns."""

from __future__ import annotations

from rich.console import Console

from secateur.pages.cuda_text import about_gpu, gpu_tables, not_measured
from secateur.pages.hardware_console import print_section
from secateur.pages.hardware_text import Section
from secateur.pages.printed_lines import print_lines, print_title
from secateur.studies import GpuReport


def print_gpu(report: GpuReport, console: Console) -> None:
    print_section(console, Section("What pruning buys on this GPU", about_gpu(report), gpu_tables(report, narrow=True)))
    if missing := not_measured(report):
        print_title(console, "Not measured\n")
        print_lines(console, [*(f"- {line}" for line in missing), ""])
    print_title(console, "In short\n")
    print_lines(console, [*(f"- {answer}" for answer in report.answers), ""])
