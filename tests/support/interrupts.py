"""Ctrl-C at every moment at which Python would notice it, one after the other and not by chance.

Python runs the handlers of signals between two instructions: where a Python function begins or a generator goes on, and
where a built-in function has returned. A profile function is called at just these moments, and raises the signal there.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

import torch

import secateur
from tests.support.process_state import process_state

_WATCHED = (str(Path(secateur.__file__).parent), str(Path(torch.__file__).parent), contextlib.__file__)
_MOMENTS = ("call", "c_return")

T = TypeVar("T")


@dataclass(frozen=True)
class Operation(Generic[T]):
    """Something that is done to a thing: wholly or not at all, whatever interrupts it."""

    make: Callable[[], T]
    """The same thing every time."""
    run: Callable[[T], Any]
    contents: Callable[[T], Any]
    """All that `run` may change of it, to be compared with `==`."""

    @cached_property
    def done(self) -> Any:
        thing = self.make()
        self.run(thing)
        return self.contents(thing)

    def moments(self, *files: str) -> list[int]:
        """The first and the last time that each place in the code is passed, of all moments that can be interrupted."""
        _ = self.done  # what happens in the first run of a process alone would be counted, and never come again
        first: dict[Any, int] = {}
        last: dict[Any, int] = {}
        number = 0

        def note(frame: FrameType, event: str, arg: Any) -> None:
            nonlocal number
            if _can_be_interrupted(frame, event):
                if not files or frame.f_code.co_filename.endswith(files):
                    place = frame.f_code, frame.f_lasti, event
                    first.setdefault(place, number)
                    last[place] = number
                number += 1

        thing = self.make()
        with _profiled(note):
            self.run(thing)
        return sorted({*first.values(), *last.values()})

    def left_by_interrupt(self, moment: int) -> Left:
        """What is left when Ctrl-C comes at that moment."""
        thing = self.make()
        before, done, surroundings = self.contents(thing), self.done, process_state()
        number, where = 0, ""

        def interrupt(frame: FrameType, event: str, arg: Any) -> None:
            nonlocal number, where
            if _can_be_interrupted(frame, event):
                number += 1
                if number == moment + 1:
                    where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}, {event}"
                    signal.raise_signal(signal.SIGINT)

        def left(arrived: bool) -> Left:
            now, around = self.contents(thing), process_state()
            leaked = tuple(name for name, state in surroundings.items() if around[name] != state)
            return Left(where, arrived, now not in (before, done), leaked)

        try:
            with _profiled(interrupt):
                self.run(thing)
        except KeyboardInterrupt:
            return left(arrived=True)  # while the traceback is held, as where a user looks at the model after Ctrl-C
        return left(arrived=False)


@dataclass(frozen=True)
class Left:
    """What an interrupt left behind."""

    where: str
    arrived: bool
    """Whether Ctrl-C came out of the operation. Python itself loses it where a generator or a weak reference ends."""
    partial: bool
    """Whether the thing is neither as it was nor as it was to become."""
    leaked: tuple[str, ...]
    """What of the process is not as it was."""

    @property
    def clean(self) -> bool:
        return not self.partial and not self.leaked


def _can_be_interrupted(frame: FrameType, event: str) -> bool:
    return event in _MOMENTS and frame.f_code.co_filename.startswith(_WATCHED)


@contextlib.contextmanager
def _profiled(function: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(function)
    try:
        yield
    finally:
        sys.setprofile(before)
