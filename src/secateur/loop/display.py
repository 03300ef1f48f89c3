"""What a person sees while a run goes on: a live bar on a terminal, plain lines elsewhere. Both go to stderr."""

from __future__ import annotations

import sys
import time
from typing import Protocol

from rich.progress import TaskID

from secateur.base import progress_bar
from secateur.loop.result import Record

__all__ = ["Display", "LiveDisplay", "PlainDisplay", "SilentDisplay", "make_display"]


class Display(Protocol):
    """Told of every stop of a run as it happens."""

    def start(self, batches: int, done: int, metric: str) -> None:
        """The run has `batches` to train in all, `done` of them before an interruption; `metric` judges it."""

    def begin(self, stop: str) -> None: ...

    def step(self, loss: float) -> None: ...

    def end(self, record: Record) -> None: ...

    def close(self) -> None: ...


def make_display(enabled: bool, title: str = "") -> Display:
    if not enabled:
        return SilentDisplay()
    return LiveDisplay(title) if sys.stderr.isatty() else PlainDisplay(title)


class SilentDisplay:
    def start(self, batches: int, done: int, metric: str) -> None:
        pass

    def begin(self, stop: str) -> None:
        pass

    def step(self, loss: float) -> None:
        pass

    def end(self, record: Record) -> None:
        pass

    def close(self) -> None:
        pass


class PlainDisplay:
    """One line for each finished stop: readable in a log file."""

    def __init__(self, title: str = "") -> None:
        self._prefix = f"{title}: " if title else ""
        self._metric = "metric"
        self._batches = 0
        self._trained = 0
        self._done_before = 0
        self._started = 0.0

    def start(self, batches: int, done: int, metric: str) -> None:
        self._batches, self._trained, self._done_before = batches, done, done
        self._metric = metric
        self._started = time.monotonic()
        if done:
            self._print(f"going on after {done} of {batches} training batches")

    def begin(self, stop: str) -> None:
        pass

    def step(self, loss: float) -> None:
        self._trained += 1

    def end(self, record: Record) -> None:
        self._print(f"{_line(record, self._metric)}{self._time_left()}")

    def close(self) -> None:
        pass

    def _time_left(self) -> str:
        here = self._trained - self._done_before
        if not here or self._trained >= self._batches:
            return ""
        seconds = (time.monotonic() - self._started) / here * (self._batches - self._trained)
        return f", about {seconds:.0f} s left"

    def _print(self, line: str) -> None:
        print(f"{self._prefix}{line}", file=sys.stderr, flush=True)


class LiveDisplay:
    """A bar over the whole run with its time left, under a line for each finished stop."""

    def __init__(self, title: str = "") -> None:
        self._title = title
        self._metric = "metric"
        self._last = ""
        self._bar = progress_bar()
        self._task: TaskID | None = None

    def start(self, batches: int, done: int, metric: str) -> None:
        self._metric = metric
        self._task = self._bar.add_task(self._title or "start", total=max(1, batches), completed=done, news="")
        self._bar.start()
        if done:
            self._bar.console.print(f"{self._title}  going on after {done} of {batches} training batches")

    def begin(self, stop: str) -> None:
        self._update(description=f"{self._title}  {stop}".strip())

    def step(self, loss: float) -> None:
        self._update(advance=1, news=f"loss {loss:.3f}{self._last}")

    def end(self, record: Record) -> None:
        self._last = f" · {self._metric} {record.metric:.4f}"
        self._update(news=self._last.removeprefix(" · "))
        self._bar.console.print(f"{self._title}  {_line(record, self._metric)}".strip(), highlight=False)

    def close(self) -> None:
        self._bar.stop()

    def _update(self, **changes: object) -> None:
        if self._task is not None:
            self._bar.update(self._task, **changes)  # type: ignore[arg-type]


def _line(record: Record, metric: str) -> str:
    return f"{record.stop}: {metric} {record.metric:.4f}{record.pruned} ({record.seconds:.1f} s)"
