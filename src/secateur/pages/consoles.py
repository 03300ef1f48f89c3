"""Tables on the console, in 80 columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from secateur.base import printable
from secateur.bench import NUMBERS, Sheet
from secateur.pages.printed_lines import print_lines, print_title

_COLOURS = {"faster": "green", "slower": "red", "no different": "yellow", "too noisy": "yellow"}


def print_sheet(sheet: Sheet, console: Console) -> None:
    console.print(as_table(sheet.size_rows()))
    for measurement in sheet.measurements:
        console.print()
        print_title(console, measurement.title)
        console.print(as_table(measurement.rows()))
        print_lines(console, measurement.comparison.note_lines)
    print_lines(console, ["", *sheet.notes])


def as_table(rows: Sequence[Sequence[str]], numbers: Collection[int] = NUMBERS) -> Table:
    """The first row is the head; a long name is the one cell that may take several lines."""
    head, *body = rows
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for i, title in enumerate(head):
        table.add_column(title, justify="right" if i in numbers else "left", no_wrap=i > 0, overflow="fold")
    for row in body:
        table.add_row(*(Text(printable(cell), style=_COLOURS.get(cell, "")) for cell in row))
    return table
