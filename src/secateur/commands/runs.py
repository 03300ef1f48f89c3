"""From the folder of a run back to the task that it pruned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from secateur.base import UsageError, did_you_mean_path
from secateur.commands.settings import SETTINGS_FILE, read_settings
from secateur.commands.task_file import TaskFile, load_task
from secateur.loop import require_run

__all__ = ["task_and_runs", "task_of_run"]


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
    return task_of_run(runs[0], given), runs


def task_of_run(run: Path, given: str | None) -> TaskFile:
    """The task that a run's settings name, unless a person gives one.

    A folder may come from anybody, and a task is code. So only a file that is here already is run: one below the
    current folder, and not in the run's own.
    """
    if given is not None:
        return load_task(given)
    file = run / SETTINGS_FILE
    named = read_settings(file).get("task") if file.is_file() else None
    if not isinstance(named, str):
        require_run(run)
        raise UsageError(f"{run} does not say which task it pruned; add --task TASK.")
    path = Path(named) if named.endswith(".py") else Path(*named.split(".")).with_suffix(".py")
    here, place = Path.cwd().resolve(), path.resolve()
    if not place.is_file() or not place.is_relative_to(here) or place.is_relative_to(run.resolve()):
        raise UsageError(
            f"{run} was made with the task {named}, which is not below this folder; go where it is, or add --task TASK."
        )
    return load_task(named)
