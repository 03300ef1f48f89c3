"""`open_pool`: Ray where it is installed and has something to share out, and otherwise one job after another."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from secateur.base import UsageError, install_hint, require_count
from secateur.bench import this_machine
from secateur.studies.pool.jobs import Pool
from secateur.studies.pool.one_by_one import OneByOne


@contextmanager
def open_pool(
    root: Path, jobs: int, at_once: int | None = None, cores: int | None = None, processes: int = 1
) -> Iterator[Pool]:
    """For about so many jobs that work in folders below `root`.

    `at_once` of them run side by side at the most, on so many `cores` each, and each in so many `processes`.
    """
    for name, count in (("at_once", at_once), ("cores", cores), ("processes", processes)):
        if count is not None:
            require_count(name, count, "give a whole number, 1 or more.")
    cluster = os.environ.get("RAY_ADDRESS")
    if cluster is None and (at_once == 1 or jobs <= 1 or this_machine().cores == 1):
        yield OneByOne(root, cores)
    elif importlib.util.find_spec("ray") is not None:
        from secateur.studies.pool.ray_pool import ray_pool

        with ray_pool(root, jobs, at_once, cores, processes) as pool:
            yield pool
    elif cluster is not None or at_once is not None:
        why = f"RAY_ADDRESS is {cluster}" if cluster else f"at_once is {at_once}"
        raise UsageError(f"{why}, and Ray is not installed; {install_hint('sweep')} brings it.")
    else:
        yield OneByOne(root, cores)
