"""Ctrl-C while something is changed and put back: it waits until that is done, so that nothing is left half done.

Python runs the handler of a signal between any two instructions, also in the `__exit__` of a context manager before its
first line, so that `with` and `finally` alone lose what they were to restore. In `uninterrupted` blocks the handlers
wait. Long work inside is run by `interruptible`, or asks with `let_interrupts_in` wherever it can end like any call
that fails.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Those for which programs set handlers; SIGINT, which always has one, is given back last.
_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]


class _Gate:
    """Takes the place of all handlers that run Python code: Ctrl-C's, and those that a program has set itself."""

    def __init__(self, patience: int | None) -> None:
        self.patience = patience
        self.waiting: list[int] = []
        found = {number: signal.getsignal(number) for number in _SIGNALS}
        self.handlers: dict[int, Callable[..., Any]] = {
            number: handler for number, handler in found.items() if callable(handler)
        }

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.patience is None or len(self.waiting) < self.patience:
            self.waiting.append(number)
        else:
            self.waiting = [other for other in self.waiting if other != number]
            self.handlers[number](number, frame)

    def close(self) -> None:
        for number in self.handlers:
            signal.signal(number, self)

    def open(self) -> None:
        """What waits comes in, and so does what comes later, if somebody has kept this handler."""
        self.patience = None
        try:
            self._give_back(list(self.handlers))
        finally:
            self.patience = 0
            self.let_in()

    def _give_back(self, numbers: list[int]) -> None:
        """One after the other, although each may be called at once, and raise."""
        if numbers:
            try:
                in_place: object = signal.getsignal(numbers[-1])
                if in_place is self:
                    signal.signal(numbers[-1], self.handlers[numbers[-1]])
            finally:
                self._give_back(numbers[:-1])

    def let_in(self) -> None:
        if self.waiting:
            number = self.waiting[0]
            self.waiting = [other for other in self.waiting if other != number]
            try:
                self.handlers[number](number, None)
            finally:
                self.let_in()


_gate: _Gate | None = None
"""Only ever of the main thread: no other runs the handlers of signals."""


class uninterrupted:  # noqa: N801, as those of contextlib
    """Signals wait until the end of the block. They are then handled as if they had arrived there; none is lost.

    Where `patience` is given, only so many wait, and the next one is handled at once: for blocks in which the user's
    code runs, which may never end.
    """

    def __init__(self, patience: int | None = None) -> None:
        self._patience = patience
        self._ours: _Gate | None = None
        self._around: _Gate | None = None

    def __enter__(self) -> None:
        global _gate
        if threading.current_thread() is not threading.main_thread():
            return
        if _gate is not None:
            self._around, self._patience, _gate.patience = _gate, _gate.patience, self._patience
            return
        self._ours = _Gate(self._patience)
        try:
            self._ours.close()
        except BaseException:
            self._ours.open()
            raise
        _gate = self._ours

    def __exit__(self, *raised: object) -> None:
        global _gate
        if self._around is not None:
            self._around.patience = self._patience
            if self._patience == 0:
                self._around.let_in()
        if self._ours is not None:
            _gate = None
            self._ours.open()


def let_interrupts_in() -> None:
    """Handles the signals that wait, which mostly raises KeyboardInterrupt."""
    if _gate is not None and _gate.waiting and threading.current_thread() is threading.main_thread():
        _gate.let_in()


def interruptible(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns. Within an `uninterrupted` block, signals are handled at once while it runs."""
    gate = _gate
    if gate is None or threading.current_thread() is not threading.main_thread():
        return work(*args, **kwargs)
    before = gate.patience
    try:
        gate.patience = 0
        gate.let_in()
        return work(*args, **kwargs)
    finally:
        gate.patience = before  # a plain assignment, before which no handler runs
