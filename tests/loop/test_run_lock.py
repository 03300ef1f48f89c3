"""One process at a time works on the folder of a run, and says which; a killed one blocks nobody."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import secateur
from secateur.loop.run_folder import RunFolder
from secateur.loop.run_lock import LOCK_FILE, RunLock
from secateur.loop.task import accuracy
from tests.support.models import ConvNet

Loaders = dict[str, DataLoader]


def prune(folder: Path, loaders: Loaders, metric: Callable[[nn.Module, Any], float] = accuracy) -> secateur.Result:
    torch.manual_seed(0)
    options = {"train": 0, "repair": 0, "finetune": 0, "progress": False, "metric": metric}
    return secateur.prune(ConvNet(), 0.5, run_dir=folder, **options, **loaders)


@pytest.mark.parametrize("there_before", [False, True])
def test_a_second_process_is_told_of_the_first(there_before: bool, tmp_path: Path, loaders: Loaders) -> None:
    said: list[str] = []

    def metric(model: nn.Module, data: Any) -> float:
        if not said:
            with pytest.raises(secateur.UsageError) as caught:
                prune(tmp_path / "run", loaders)
            said.append(str(caught.value))
        return 0.5

    if there_before:
        (tmp_path / "run").mkdir()
    result = prune(tmp_path / "run", loaders, metric)
    who = f"is in use by process {os.getpid()} on {socket.gethostname()} since 20"
    assert who in said[0]
    assert said[0].endswith("; wait until it ends, or choose another folder.")
    assert len(result.records) == 2
    assert not (tmp_path / "run" / LOCK_FILE).exists()


def test_one_that_began_at_the_same_time_is_refused(
    tmp_path: Path, loaders: Loaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither found a folder; when the second begins, the first has run."""

    def begin_when_another_has_run(folder: RunFolder) -> None:
        monkeypatch.undo()
        prune(tmp_path / "run", loaders)
        folder.begin()

    monkeypatch.setattr(RunFolder, "begin", begin_when_another_has_run)
    with pytest.raises(secateur.UsageError, match=r"Another process has run in .*/run meanwhile; start again"):
        prune(tmp_path / "run", loaders)
    assert len(prune(tmp_path / "run", loaders).records) == 2


def test_what_a_killed_process_left_blocks_nobody(tmp_path: Path, loaders: Loaders) -> None:
    (tmp_path / LOCK_FILE).write_text(json.dumps({"process": 1, "host": "here", "since": "2026-01-01 00:00"}))
    assert len(prune(tmp_path, loaders).records) == 2


def test_a_run_that_fails_gives_the_folder_back(tmp_path: Path, loaders: Loaders) -> None:
    def metric(model: nn.Module, data: Any) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune(tmp_path, loaders, metric)
    assert not (tmp_path / LOCK_FILE).exists()
    lock = RunLock(tmp_path)
    lock.take()
    lock.give_back()


def test_processes_that_load_data_do_not_keep_the_lock_of_a_killed_run(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.take()
    (ends, end), (runs, run) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.write(run, b"x")
        os.read(ends, 1)
        os._exit(0)
    os.read(runs, 1)
    assert lock._descriptor is not None
    os.close(lock._descriptor)  # as the kernel does when the process is killed
    again = RunLock(tmp_path)
    again.take()
    os.close(end)
    os.waitpid(child, 0)
    again.give_back()
    for pipe in (ends, runs, run):
        os.close(pipe)


def test_a_file_system_without_locks_is_no_obstacle(
    tmp_path: Path, loaders: Loaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert len(prune(tmp_path, loaders).records) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "run.json", "secateur.json"]


@pytest.mark.parametrize("link", [os.symlink, os.link, lambda own, path: os.mkfifo(path)])
def test_a_lock_that_somebody_made_up_is_not_written_through(
    link: Callable[[Path, Path], None], tmp_path: Path, loaders: Loaders
) -> None:
    (tmp_path / "users_own").write_text("mine")
    (tmp_path / "run").mkdir()
    link(tmp_path / "users_own", tmp_path / "run" / LOCK_FILE)
    with pytest.raises(secateur.SecateurError, match=r"run\.lock is no file that a run left there; delete it\.$"):
        prune(tmp_path / "run", loaders)
    assert (tmp_path / "users_own").read_text() == "mine"
