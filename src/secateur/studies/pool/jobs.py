"""What a pool runs: jobs, how they reach their folders and speak on the way, and what becomes of those that fail."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from secateur.base import SecateurError, in_brief, make_folder

LOG_FILE = "log.txt"

Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class News:
    """What a job tells of itself."""

    lasting: bool = False
    """Whether a part of the job is done that need not be done again, should its worker be lost."""


Tell = Callable[[News], None]
"""Takes news to whoever waits for the job."""


class Worker(Protocol):
    """The place where a job runs, which may be another machine."""

    @property
    def root(self) -> Path:
        """The pool's folder, or the copy of it here."""

    def tell(self, news: News) -> None: ...

    def keep(self, folder: str) -> None:
        """Brings what has changed in a folder below the root home, where it outlasts this machine."""

    def bring(self, file: Path) -> Path:
        """Where a file of the machine that the pool was opened on can be read here."""


@dataclass(frozen=True)
class Job:
    name: str
    work: Callable[[Worker], Any]
    """Called where the job runs; pickled on the way there."""
    folders: tuple[str, ...] = ()
    """Those below the root that it reads; the first, if there is one, is its own and keeps its log."""
    alone: bool = False
    """Whether nothing may run beside it: it measures time, or has work for a whole machine."""
    all_cores: bool = False
    """Whether it computes on all cores of the machine instead of its share."""


class Shared(Protocol[Value_co]):
    """What many jobs need: sent to each machine once."""

    def get(self) -> Value_co: ...


@dataclass(frozen=True)
class Failed:
    """What a job that ended in an error returns."""

    reason: str
    """A sentence."""


@dataclass(frozen=True)
class Lost(News):
    """Told in the place of a job whose worker is gone: it starts again."""

    reason: str
    advice: str = "see its log"
    """Should it happen again and again."""


Hear = Callable[[str, News], None]


class Pool(Protocol):
    def run(self, jobs: Sequence[Job], hear: Hear) -> Iterator[tuple[Job, Any]]:
        """The jobs and what they returned, or `Failed`, as they end. `hear` gets what they tell, by their names."""

    def share(self, value: Value) -> Shared[Value]: ...

    @property
    def at_once(self) -> int:
        """How many jobs run side by side, as far as can be told now."""


def attempt(job: Job, worker: Worker) -> Any:
    """What the job returns, or why it failed, with the whole story in its log."""
    with logged(worker.root / job.folders[0] / LOG_FILE) if job.folders else nullcontext():
        return outcome_of(partial(job.work, worker))


def outcome_of(work: Callable[[], Any]) -> Any:
    """What it returns, or `Failed`; the traceback is printed."""
    try:
        return work()
    except Exception as error:
        traceback.print_exc()
        return Failed(str(error) if isinstance(error, SecateurError) else in_brief(error))


@contextmanager
def logged(file: Path) -> Iterator[None]:
    """What is printed goes to the end of a file, because others print, too."""
    make_folder(file.parent)
    with (
        file.open("a", encoding="utf-8", errors="replace", buffering=1) as log,
        redirect_stdout(log),
        redirect_stderr(log),
    ):
        yield
