"""`side_by_side`: one function of many things, as many of them at a time as cores allow."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from secateur.base import SecateurError
from secateur.studies.pool.jobs import Failed, Job, Shared, Value, Worker
from secateur.studies.pool.opening import open_pool

Item = TypeVar("Item")


def side_by_side(
    work: Callable[[Item], Value],
    items: Mapping[str, Item],
    at_once: int | None = None,
    tell: Callable[[str], Any] = lambda name: None,
) -> Iterator[tuple[str, Value]]:
    """What `work` makes of each item, by name, as it is found. Where only one runs at a time, it runs here.

    `tell` is called with each name, when its turn comes here, and when it is done elsewhere.
    """
    with tempfile.TemporaryDirectory() as scratch, open_pool(Path(scratch), len(items), at_once) as pool:
        if pool.at_once == 1:
            for name, item in items.items():
                tell(name)
                yield name, work(item)
            return
        shared = pool.share(work)
        jobs = [Job(name, _Call(shared, item)) for name, item in items.items()]
        for job, outcome in pool.run(jobs, lambda name, news: None):
            if isinstance(outcome, Failed):
                raise SecateurError(f"{job.name}: {outcome.reason}")
            tell(job.name)
            yield job.name, outcome


@dataclass(frozen=True)
class _Call(Generic[Item, Value]):
    work: Shared[Callable[[Item], Value]]
    item: Item

    def __call__(self, worker: Worker) -> Value:
        return self.work.get()(self.item)
