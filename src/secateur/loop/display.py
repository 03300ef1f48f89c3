"""What a person sees while a run goes on: a live bar on a terminal, and a line for each finished stop."""

from __future__ import annotations

import sys

from secateur.base import progress_bar
from secateur.loop.result import Record


class Display:
    """Told of every stop of a run as it happens; writes to stderr. A display of your own derives from this one."""

    def __init__(self, title: str = "", enabled: bool = True) -> None:
        self.enabled = enabled
        self._title = f"{title}: " if title else ""
        self._live = enabled and sys.stderr.isatty()
        self._bar = progress_bar()
        self._task = self._bar.add_task("", total=1, news="")
        self._metric = "metric"

    def start(self, batches: int, done: int, metric: str) -> None:
        """The run has `batches` to train in all, `done` of them before an interruption; `metric` judges it."""
        self._metric = metric
        self._bar.reset(self._task, total=max(1, batches), completed=done)
        if done:
            self._print(f"going on after {done} of {batches} training batches")

    def before(self, phase: str) -> None:
        """A stop of this phase is next. Whatever came before it is kept, but for a cut before its repair; a display
        that raises an error here ends the run, and the same call goes on from there."""

    def begin(self, stop: str) -> None:
        self._bar.update(self._task, description=f"{self._title}{stop}")
        if self._live:
            self._bar.start()

    def step(self, loss: float) -> None:
        """After every training batch."""
        self._bar.update(self._task, advance=1, news=f"loss {loss:.3f}")

    def end(self, record: Record) -> None:
        left = self._bar.tasks[0].time_remaining if not self._bar.finished else None
        self.close()  # what comes next may show a bar of its own
        time_left = f", about {left:.0f} s left" if left else ""
        line = f"{record.stop}: {self._metric} {record.metric:.4f}{record.pruned} ({record.seconds:.1f} s)"
        self._print(line + ("" if self._live else time_left))

    def close(self) -> None:
        if self._live:
            self._bar.stop()

    def _print(self, line: str) -> None:
        if self.enabled:
            self._bar.console.print(f"{self._title}{line}", highlight=False, markup=False, soft_wrap=True)
