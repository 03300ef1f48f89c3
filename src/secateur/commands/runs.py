"""The task that a record names: the settings of a run, or a file of settings.

A task is code, and a record may come from anybody. So a task that nobody named on the command line is run only if it is
the user's own: below the current folder, in no folder that holds a run, and apart from all that was given. What a
stranger packed into one folder, a run and a task beside it, stays one folder below the current one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from secateur.base import UsageError, did_you_mean_path
from secateur.checkpoint import MANIFEST_FILE
from secateur.commands.settings import SETTINGS_FILE, read_settings
from secateur.commands.task_file import TaskFile, load_task
from secateur.loop import RUN_FILE, require_run


def task_and_runs(what: Sequence[str], given: str | None) -> tuple[TaskFile, list[Path]]:
    """A person names a task and then runs of it, or only the runs."""
    first = Path(what[0])
    first_is_run = first.is_dir()
    if first.suffix != ".py" and (hint := did_you_mean_path(first, "", folder=True)):
        raise UsageError(f"There is no folder {first}; {hint}")
    runs = [Path(run) for run in (what if first_is_run else what[1:])]
    if not first_is_run:
        if given is not None:
            raise UsageError(f"{what[0]} is no folder of a run; give the task either first or as --task, not both.")
        return load_task(what[0]), runs
    return task_of_runs(runs, given), runs


def named_task(task: str, settings: Path | None) -> TaskFile:
    """The task that a person names, or, where settings do, the one in these settings."""
    if settings is None:
        return load_task(task)
    return load_recorded_task(task, settings, [], "name it in front of --settings")


def task_of_runs(runs: Sequence[Path], given: str | None) -> TaskFile:
    """The task that a person gives, or else the one that the first run names."""
    if given is not None:
        return load_task(given)
    file = runs[0] / SETTINGS_FILE
    named = read_settings(file).get("task") if file.is_file() else None
    if not isinstance(named, str):
        require_run(runs[0])
        raise UsageError(f"{runs[0]} does not say which task it pruned; add --task TASK.")
    return load_recorded_task(named, file, runs, "add --task TASK")


def load_recorded_task(named: str, settings: Path, folders: Sequence[Path], remedy: str) -> TaskFile:
    """The task that settings name, unless it may have come with them or with the folders that were given."""
    is_module = not named.endswith(".py") and all(part.isidentifier() for part in named.split("."))
    file = Path(*named.split(".")).with_suffix(".py") if is_module else Path(named)
    if not file.name or not os.access(file, os.R_OK) or not _is_users_own(file, [settings, *folders]):
        raise UsageError(
            f"{settings} names the task {named}, which is not below this folder, or may have come with a run. "
            f"If you trust it, {remedy}."
        )
    print(f"Running {file}, as {settings} says.", file=sys.stderr)
    return load_task(named)


def _is_users_own(task: Path, given: Sequence[Path]) -> bool:
    """Links are followed, those in the folders on the way to the task as well: each could be a package that runs."""
    here = _real(Path())
    strange = [_real(each) for each in given]
    if any(here.is_relative_to(each) for each in strange) or task.with_suffix("").is_dir():
        return False  # a package is imported before a module of its name
    strange_here = {each.relative_to(here).parts[0] for each in strange if each.is_relative_to(here)}
    return all(
        place.is_relative_to(here)
        and strange_here.isdisjoint(place.relative_to(here).parts[:1])
        and not any(map(_holds_run, (place, *place.parents)))
        for place in map(_real, (task, *task.parents))
        if not here.is_relative_to(place)
    )


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve raises where links go round in circles


def _holds_run(folder: Path) -> bool:
    return any(os.path.lexists(folder / record) for record in (RUN_FILE, MANIFEST_FILE))
