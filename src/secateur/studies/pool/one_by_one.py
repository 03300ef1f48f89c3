"""The pool without Ray: one job after another, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic

from secateur.bench import torch_threads
from secateur.studies.pool.jobs import Hear, Job, Shared, Tell, Value, attempt


class OneByOne:
    at_once = 1

    def __init__(self, root: Path, cores: int | None) -> None:
        self._root, self._cores = root, cores

    def share(self, value: Value) -> Shared[Value]:
        return _Same(value)

    def run(self, jobs: Sequence[Job], hear: Hear) -> Iterator[tuple[Job, Any]]:
        for job in jobs:
            with torch_threads(self._cores) if self._cores else nullcontext():
                outcome = attempt(job, _Here(self._root, partial(hear, job.name)))
            yield job, outcome


@dataclass(frozen=True)
class _Same(Generic[Value]):
    value: Value

    def get(self) -> Value:
        return self.value


class _Here:
    """A worker in the process that waits for it."""

    def __init__(self, root: Path, tell: Tell) -> None:
        self.root, self.tell = root, tell

    def keep(self, folder: str) -> None:
        """It is at home already."""

    def bring(self, file: Path) -> Path:
        return file
