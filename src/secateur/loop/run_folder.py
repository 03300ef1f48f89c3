"""The folder of a run: its settings, the state after the last finished stop, and at the end its result, a checkpoint.

A state is written beside the old one and renamed when it is whole, so a run killed at any moment finds the last
finished stop when it is started again.
"""

from __future__ import annotations

import json
import re
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import nn

from secateur.base import (
    SecateurError,
    UsageError,
    did_you_mean_path,
    flush_folder,
    from_json,
    in_brief,
    make_folder,
    read_json,
    saving,
    to_json,
    write_text,
)
from secateur.checkpoint import MANIFEST_FILE, open_checkpoint, restore
from secateur.loop.histogram import WeightHistogram
from secateur.loop.identity import digest_of_architecture
from secateur.loop.result import Record, Result, read_history
from secateur.loop.run_lock import RunLock
from secateur.loop.state import State
from secateur.loop.tuner import DENSE_FILE, Tuner
from secateur.plans import Masks, Plan
from secateur.refit import EXAMPLES

RUN_FILE = "run.json"
MASKS_FILE = "masks.safetensors"
PLAN_FILE = "plan.json"
HISTOGRAM_FILE = "histogram.json"

_VERSION = 1
_STATE = re.compile(r"stop-(\d+)")


class RunFolder:
    """All processes call its methods together; the main one writes, and holds the lock until the end."""

    def __init__(self, path: str | Path, accelerator: Accelerator) -> None:
        self.path = Path(path)
        self.main: bool = accelerator.is_main_process
        self.barrier: Callable[[], None] = accelerator.wait_for_everyone
        self.settings: Mapping[str, Any] = {}
        self._lock = RunLock(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.give_back()

    def open(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Refuses a folder that holds another run; one that has passed no stop yet has nothing to lose. Returns the
        settings to go on with."""
        self.settings = settings
        file = self.path / RUN_FILE
        if self.main and self.path.is_dir() and not self.finished:
            self._lock.take()
        if self.main and not file.exists() and self.finished:
            raise UsageError(f"{self.path} holds a checkpoint that no run left there; choose another folder.")
        if self.main and file.exists() and (self.finished or self._states()):
            self._require_same(_read_json(file))
        self.settings = broadcast_object_list([self.settings])[0]
        return self.settings

    def begin(self) -> None:
        """Starts a run here."""
        if self.main:
            make_folder(self.path)
            self._lock.take()
            if self.finished or self._states():
                raise UsageError(f"Another process has run in {self.path} meanwhile; start again to go on from there.")
            write_text(self.path / RUN_FILE, json.dumps({"version": _VERSION, "settings": self.settings}, indent=2))
        self.barrier()

    def save(self, state: State, tuner: Tuner) -> None:
        """Keeps the state after a finished stop, then drops the one before."""
        final = self.path / f"stop-{len(state.records):04d}"
        partial = final.with_name(final.name + ".partial")
        with saving(final):
            try:
                if self.main:
                    shutil.rmtree(partial, ignore_errors=True)
                    partial.mkdir(parents=True)
                self.barrier()
                tuner.save(partial)
                self.barrier()
                if self.main:
                    _write_state(state, partial)
                    older = self._states()
                    flush_folder(partial)
                    partial.rename(final)
                    flush_folder(self.path)
                    for old in older:
                        shutil.rmtree(old)
            except BaseException:
                if self.main:
                    shutil.rmtree(partial, ignore_errors=True)
                raise
        self.barrier()

    def resume(self, tuner: Tuner) -> State:
        """Puts the model and the optimizer into the last saved state, if there is one, and returns it."""
        states = self._states()
        if not states:
            return State()
        folder = states[-1]
        try:
            _require_regular_files(folder)
            state = _read_state(folder)
            if state.plan is not None:
                tuner.cut(state.plan)
            tuner.load(folder)
            if state.masks is not None:
                tuner.enforce(state.masks)
        except Exception as error:
            reason = str(error).rstrip(".") if isinstance(error, SecateurError) else in_brief(error)
            raise SecateurError(
                f"The state in {folder} cannot be read ({reason}); delete {self.path} to start the run again."
            ) from error
        return state

    def finish(self, result: Result) -> None:
        """Writes the outcome; its presence means that the run has ended."""
        if self.main:
            result.save(self.path, settings=self.settings)
            self._drop_states()
        self.barrier()

    @property
    def finished(self) -> bool:
        return (self.path / MANIFEST_FILE).exists()

    def stored_result(self, model: nn.Module) -> Result:
        """The outcome of a run that ended here; fills `model` with its weights."""
        if self.main:
            self._drop_states()  # if the run was killed at the very end, they are still there
        try:
            return _read_result(self.path, model)
        except Exception as error:
            raise SecateurError(
                f"The result in {self.path} cannot be read ({error}); delete the folder to start the run again."
            ) from error

    def _states(self) -> list[Path]:
        if not self.path.is_dir():
            return []
        return sorted(
            entry
            for entry in self.path.iterdir()
            if _STATE.fullmatch(entry.name) and entry.is_dir() and not entry.is_symlink()
        )

    def _drop_states(self) -> None:
        for state in self._states():
            shutil.rmtree(state, ignore_errors=True)  # two that read a finished run may drop them at once
        (self.path / DENSE_FILE).unlink(missing_ok=True)

    def _require_same(self, stored: Any) -> None:
        if not isinstance(stored, dict) or stored.get("version") != _VERSION:
            raise SecateurError(f"{self.path} holds a run of another version of secateur; choose another folder.")
        try:
            before = _unfolded(stored["settings"])
        except (KeyError, AttributeError) as error:  # no settings, or none by name
            raise SecateurError(f"{self.path / RUN_FILE} is damaged; delete {self.path} to start anew.") from error
        if "repair" in self.settings and "repair" not in before:  # earlier versions had none: their runs go on without
            before["repair"] = 0
            if self.settings["repair"] == EXAMPLES:
                self.settings = {**self.settings, "repair": 0}
        now = json.loads(json.dumps(self.settings))
        if "distill" not in before:  # what earlier versions did by default
            before["distill"] = now["distill"]
            for was, left_open in (("distill=0.0", "distill=None"), ("finetune_scale=1.0", "finetune_scale=None")):
                if left_open in now["recipe"]:
                    before["recipe"] = str(before.get("recipe")).replace(was, left_open)
        if not self.finished:
            before, now = (
                {**each, "recipe": None, "distill": None} for each in (before, now)
            )  # it may change on the way
        changed = [key for key in _compared(before, now) if before.get(key) != now.get(key)]
        if changed:
            differences = ", ".join(f"{key} was {before.get(key)!r}, now {now.get(key)!r}" for key in changed)
            raise UsageError(
                f"{self.path} holds another run ({differences}); choose another folder, or delete it to start anew."
            )


def require_run(path: Path) -> None:
    if not (path / RUN_FILE).is_file():
        hint = did_you_mean_path(path, "give a folder that prune wrote: --out, or run_dir in Python.", folder=True)
        raise UsageError(f"There is no run in {path}; {hint}")


def load_run(folder: str | Path, model: nn.Module) -> Result:
    """The outcome of a finished run of `prune` or `train`; `model`, of the run's architecture, becomes its model."""
    path = Path(folder)
    require_run(path)
    if not (path / MANIFEST_FILE).is_file():
        raise UsageError(f"The run in {path} has not ended yet; let it go on first, with the call that started it.")
    try:
        architecture = _read_json(path / RUN_FILE)["settings"]["architecture"]
    except (KeyError, TypeError) as error:
        raise SecateurError(f"{path / RUN_FILE} is damaged; make the run again.") from error
    if architecture != digest_of_architecture(model):
        raise UsageError(f"The run in {path} pruned another architecture; give the model that it began with.")
    try:
        return _read_result(path, model)
    except Exception as error:
        raise SecateurError(f"The result in {path} cannot be read ({error}); make the run again.") from error


def _unfolded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Version 0.1.0 kept options under "ranking", empty where nobody had given them."""
    given = {option: value for option, value in settings.get("ranking", {}).items() if value}
    if "per_layer" in given:
        given["per_layer"] = [list(item) for item in given["per_layer"].items()]
    return {**{key: value for key, value in settings.items() if key != "ranking"}, **given}


def _compared(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What a folder of version 0.1.0 does not say, such as the loss, is not compared; how much to prune always is."""
    return sorted({*before, *(now if "loss" in before else ("amount", "channels", "target"))})


def _write_state(state: State, folder: Path) -> None:
    if state.masks is not None:
        state.masks.save(folder / MASKS_FILE)
    if state.plan is not None:
        state.plan.save(folder / PLAN_FILE)
    if state.histogram is not None:
        write_text(folder / HISTOGRAM_FILE, json.dumps(to_json(state.histogram)))
    write_text(folder / "progress.json", json.dumps(to_json(state.records)))


def _require_regular_files(folder: Path) -> None:
    """A run leaves no links there, nor pipes, which a reader would wait for."""
    for entry in folder.rglob("*"):
        if not stat.S_ISREG(entry.lstat().st_mode) and (entry.is_symlink() or not entry.is_dir()):
            raise SecateurError(f"{entry.name} is not a regular file")


def _read_state(folder: Path) -> State:
    plan, masks, histogram = (folder / name for name in (PLAN_FILE, MASKS_FILE, HISTOGRAM_FILE))
    return State(
        from_json(tuple[Record, ...], _read_json(folder / "progress.json"), "the progress"),
        Masks.load(masks) if masks.exists() else None,
        Plan.load(plan) if plan.exists() else None,
        from_json(WeightHistogram, _read_json(histogram), "the histogram") if histogram.exists() else None,
    )


def _read_result(path: Path, model: nn.Module) -> Result:
    with open_checkpoint(path) as opened:
        restore(opened, model)
        history = read_history(opened.manifest.metrics)
        return Result(**vars(history), model=model, masks=opened.masks or Masks({}), plan=opened.manifest.plan)


def _read_json(file: Path) -> Any:
    try:
        return read_json(file)
    except (OSError, ValueError) as error:
        raise SecateurError(f"{file} cannot be read ({error}); delete its folder to start the run again.") from error
