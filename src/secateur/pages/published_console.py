"""Published speed-ups on GPUs for the terminal. It loads no torch, so that it is there at once."""

from __future__ import annotations

from rich.console import Console

from secateur.pages.printed_lines import print_lines, print_title
from secateur.studies import GpuFacts

INTRODUCTION = (
    "What others have measured and published: the median speed-up over dense and its range; above 1 is faster. It is "
    "shown as it is. A model that predicts from data sheets was tried, and did no better than a look at this table."
)


def print_published(facts: GpuFacts, console: Console) -> None:
    print_title(console, "On GPUs, as published\n")
    print_lines(console, [INTRODUCTION, ""])
    for line in [*str(facts).splitlines(), ""]:
        print_lines(console, [line], soft_wrap=line.startswith("["))  # an address in one piece can be clicked
