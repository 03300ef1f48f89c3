"""Titles and sentences on the console; apart from tables, because it loads nothing."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from secateur.base import printable


def print_title(console: Console, title: str) -> None:
    for line in title.split("\n"):
        console.print(printable(line), style="bold", markup=False, highlight=False)


def print_lines(console: Console, lines: Iterable[str], soft_wrap: bool = False) -> None:
    for line in lines:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=soft_wrap)
