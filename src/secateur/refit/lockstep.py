"""Many passes side by side, each in a thread of its own, that all wait at the same call until somebody lets them go on.

Only one thread runs at a time, handed on like a baton, so that the result does not depend on their order.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from secateur.base import uninterrupted
from secateur.refit.processes import Processes

Place = tuple[str, int]
"""A name, and how often a pass has been at a call of that name before."""
OFF_THE_WAY = -1


@dataclass(eq=False)
class Stop:
    """A call that a pass waits at."""

    name: str
    """Of the parameter or buffer that makes it known."""
    time: int
    """How often the pass has been at a call of that name before."""
    order: int
    """On the way that a pass before them took. Those that have parted meet again because the smaller goes on, and
    first of all what is off that way."""
    call: Any
    result: Any = field(default=None)
    """What the call gives, if somebody has computed it meanwhile."""

    @property
    def place(self) -> Place:
        return self.name, self.time


class _Cancelled(BaseException):
    """Ends a pass that nobody needs any more; no `except Exception` of a model holds it up."""


class Walker:
    """One pass. `step` lets it run to its next stop."""

    def __init__(self, run: Callable[[Walker], None]) -> None:
        self._run = run
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._cancelled = False
        self._error: BaseException | None = None
        self.at: Stop | None = None
        self.done = False

    def step(self) -> None:
        """To the next stop, or to the end. What the pass raises is raised here."""
        if self._thread is None:
            self._begin()
        self._go.release()
        self._back.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def pause(self, stop: Stop) -> None:
        """Called by the pass."""
        if not self._cancelled:  # what a model does in its `finally` on the way out
            self.at = stop
            self._back.release()
            self._go.acquire()
            self.at = None
        if self._cancelled:
            raise _Cancelled

    def cancel(self) -> None:
        """Ends the pass wherever it is, and waits for that."""
        self._cancelled = True
        if self._thread is not None and not self.done:
            self._go.release()
            self._thread.join()

    def _begin(self) -> None:
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(self._work,), daemon=True, name="secateur-repair")
        with uninterrupted():
            thread.start()
            self._thread = thread

    def _work(self) -> None:
        self._go.acquire()
        try:
            if not self._cancelled:
                self._run(self)
        except _Cancelled:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.at, self.done = None, True
            self._back.release()


@contextmanager
def walking(walkers: Sequence[Walker], processes: Processes) -> Iterator[Iterator[tuple[str, list[Stop]]]]:
    """Yields one place after the other: its name, and the stops of the walkers that stand there, in their order.

    Mostly those are all of them, here and in the other processes. Where they take different ways, it is some.
    """
    try:
        yield _places(walkers, processes)
    finally:
        for walker in walkers:
            walker.cancel()


def _places(walkers: Sequence[Walker], processes: Processes) -> Iterator[tuple[str, list[Stop]]]:
    moving = walkers
    while True:
        standing = processes.each(partial(_next_place, walkers, moving))
        nearest = min((place for place in standing if place is not None), default=None)
        if nearest is None:
            return
        _, time, name = nearest
        moving = [walker for walker in walkers if walker.at is not None and walker.at.place == (name, time)]
        yield name, [walker.at for walker in moving if walker.at is not None]


def _next_place(walkers: Sequence[Walker], moving: Sequence[Walker]) -> tuple[int, int, str] | None:
    """Of those that walkers stand at once some have moved; None when all have ended."""
    for walker in moving:
        walker.step()
    return min(((at.order, at.time, at.name) for walker in walkers if (at := walker.at) is not None), default=None)
