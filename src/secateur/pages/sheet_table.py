"""A sheet of measurements on the console, in 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from secateur.bench import NUMBERS, Sheet

__all__ = ["print_sheet"]

_COLOURS = {"faster": "green", "slower": "red", "no different": "yellow", "too noisy": "yellow"}


def print_sheet(sheet: Sheet, console: Console) -> None:
    console.print(_table(sheet.size_rows()))
    for measurement in sheet.measurements:
        console.print()
        console.print(measurement.title, style="bold", highlight=False)
        console.print(_table(measurement.rows()))
        for note in measurement.comparison.note_lines:
            console.print(note, markup=False, highlight=False)
    console.print()
    for note in sheet.notes:
        console.print(note, markup=False, highlight=False)


def _table(rows: Sequence[Sequence[str]]) -> Table:
    """The first row is the head; a long name is the one cell that may take several lines."""
    head, *body = rows
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for i, title in enumerate(head):
        table.add_column(title, justify="right" if i in NUMBERS else "left", no_wrap=i > 0, overflow="fold")
    for row in body:
        table.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
    return table
