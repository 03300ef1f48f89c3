"""What a person sees of a sweep: one live table on a terminal, and elsewhere a line for each run that ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from secateur.base import printable
from secateur.studies.pool.jobs import Lost, News
from secateur.studies.sweep.one_run import Step
from secateur.studies.sweep.swept import DENSE_RUN

_STATES = {"waiting": "dim", "running": "", "finished": "green", "failed": "red"}
_SPARE_LINES = 8
"""Of a terminal, for the table's head and what stands around it."""


@dataclass
class _Row:
    state: Literal["waiting", "running", "finished", "failed"] = "waiting"
    doing: str = ""
    share: float = 0.0
    metric: str = ""
    changed: float = 0.0


class Board:
    """Told of everything that happens in a sweep; writes to stderr."""

    def __init__(self, names: Sequence[str], at_once: int, enabled: bool = True) -> None:
        self._rows = {name: _Row() for name in names}
        self._at_once, self._enabled = at_once, enabled
        self._started = time.monotonic()
        self._title = ""
        console = Console(file=sys.stderr)
        self._live = Live(self, console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._console = console

    def __enter__(self) -> Self:
        if self._live is not None and self._enabled:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def hear(self, name: str, news: News) -> None:
        """Of a job that runs."""
        if name == DENSE_RUN and isinstance(news, Step):
            self._title = f"dense model: {news.doing}"
        elif name in self._rows and isinstance(news, Step):
            self._title = ""
            metric = self._rows[name].metric if news.metric is None else f"{news.metric:.4f}"
            self._put(name, "running", news.doing, news.share, metric)
        elif isinstance(news, Lost):
            self._print(f"{name} starts again: {news.reason}")
            if name in self._rows:
                self._put(name, "waiting", f"starts again: {news.reason}")

    def waits(self, name: str) -> None:
        self._put(name, "waiting", "", self._rows[name].share, self._rows[name].metric)

    def finished(self, name: str, metric: str, value: float) -> None:
        self._put(name, "finished", "", 1.0, f"{value:.4f}")
        self._print(f"{name}: {metric} {value:.4f} ({self._count('finished')} of {len(self._rows)})")

    def failed(self, name: str, reason: str) -> None:
        self._put(name, "failed", reason)
        self._print(f"{name} failed: {reason}")

    def measures(self, names: Sequence[str]) -> None:
        self._title = f"timing {', '.join(names)} in turn beside the dense model"
        self._print(self._title)

    def _put(self, name: str, state: Any, doing: str = "", share: float = 0.0, metric: str = "") -> None:
        self._rows[name] = _Row(state, printable(doing), share, metric, time.monotonic())

    def _print(self, line: str) -> None:
        if self._enabled and self._live is None:
            self._console.print(printable(line), highlight=False, markup=False, soft_wrap=True)

    def _count(self, state: str) -> int:
        return sum(row.state == state for row in self._rows.values())

    def __rich__(self) -> Group:
        """The runs at work first, then those that changed last, as many as fit."""
        table = Table("run", "", "", "metric", box=None, pad_edge=False)
        shown = sorted(self._rows.items(), key=lambda item: (item[1].state != "running", -item[1].changed))
        for name, row in shown[: max(4, self._console.height - _SPARE_LINES)]:
            doing = f"{row.doing}  {row.share:.0%}" if row.state == "running" else row.doing
            table.add_row(name, row.state, doing, row.metric, style=_STATES[row.state])
        return Group(table, "", self._summary())

    def _summary(self) -> str:
        done, failed, all_of_them = self._count("finished"), self._count("failed"), len(self._rows)
        failures = f", {failed} failed" if failed else ""
        return f"{done} of {all_of_them} runs finished{failures}, {self._at_once} at once{self._left()}. {self._title}"

    def _left(self) -> str:
        """From the time that all of them together have taken so far."""
        gone = sum(1.0 if row.state == "failed" else row.share for row in self._rows.values())
        if gone < 0.05 * len(self._rows) or gone == len(self._rows):
            return ""
        seconds = (time.monotonic() - self._started) * (len(self._rows) - gone) / gone
        return f", about {seconds / 60:.0f} min left" if seconds > 90 else f", about {seconds:.0f} s left"
