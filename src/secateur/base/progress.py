"""What a person sees while something takes long: a live bar on a terminal, plain lines elsewhere. Both go to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Column


@contextmanager
def working(on: str, enabled: bool = True) -> Iterator[None]:
    """Says what takes a while where there are no steps to count."""
    if not enabled:
        yield
    elif sys.stderr.isatty():
        with Console(stderr=True).status(on):
            yield
    else:
        print(on, file=sys.stderr, flush=True)
        yield


@contextmanager
def steps(total: int, title: str, enabled: bool = True) -> Iterator[Callable[[str], None]]:
    """Yields a function to call with a few words whenever one of `total` steps begins."""
    if not enabled:
        yield lambda text: None
    elif sys.stderr.isatty():
        finished = count()
        with progress_bar() as bar:
            task = bar.add_task(title, total=total, news="")
            yield lambda text: bar.update(task, completed=next(finished), news=text)
    else:
        begun = count(1)
        yield lambda text: print(f"{title}: {next(begun)}/{total} {text}", file=sys.stderr, flush=True)


def progress_bar() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[news]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=Console(file=sys.stderr),  # the one of now: it is bent away while a model is exported
        transient=True,
    )
