"""The pool on Ray: the same results as one after another, whoever is killed, and wherever the folder is."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import secateur
from secateur import UsageError
from secateur.loop.task import classification_loss
from secateur.studies.pool import ray_pool
from secateur.studies.pool.jobs import Failed, Job, Lost, News
from secateur.studies.pool.opening import open_pool
from secateur.studies.sweep.board import Board
from secateur.studies.sweep.one_run import Step
from tests.support.models import blobs, trained_convnet
from tests.support.sweeping import assert_same_weights, small_sweep

ray = pytest.importorskip("ray")

ASKED: dict[str, Any] = {"recipe": secateur.Recipe(distill=0.5), "finetune": 2}


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    """One for all tests here: it takes seconds to start."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("RAY_ADDRESS", raising=False)
        ray_pool._connect(Path("sweep"))
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> secateur.Sweep:
    torch.set_num_threads(1)
    return small_sweep(tmp_path_factory.mktemp("undisturbed"), **ASKED)


def test_side_by_side_gives_what_one_after_another_gives(tmp_path: Path, undisturbed: secateur.Sweep) -> None:
    found = small_sweep(tmp_path / "sweep", at_once=2, measure=True, **ASKED)
    assert_same_weights(found, undisturbed)
    assert len(found.sheets) == 1
    assert not list((tmp_path / "sweep").glob(".secateur*")), "nothing of the pool is left"


def test_nobody_else_can_reach_it() -> None:
    assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]
    family: set[str] = set()
    listening: set[str] = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # the worker of an earlier test has just ended
            name = process.name()
            if not name.startswith(("gcs_server", "raylet", "ray::")):
                continue
            sockets = [each for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
            family.add(name)
            listening |= {socket.laddr.ip.removeprefix("::ffff:") for socket in sockets}
    assert {"gcs_server", "raylet"} <= family
    assert listening == {"127.0.0.1"}


def kill_worker_once(flag: Path) -> Any:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if not flag.exists() and torch.is_grad_enabled():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return classification_loss(model, batch)

    loss.__name__ = loss.__qualname__ = "classification_loss"
    return loss


@pytest.mark.parametrize("seen", [True, False])
def test_a_run_whose_worker_is_killed_goes_on_with_another(
    tmp_path: Path, undisturbed: secateur.Sweep, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    """Also where workers do not see the folder, as on another machine: what they keep is brought home."""
    if not seen:
        monkeypatch.setattr(ray_pool, "_TOKEN_FILE", ".another")  # which workers do not look for
    flag = tmp_path / "killed"
    found = small_sweep(tmp_path / "sweep", at_once=2, measure=not seen, loss=kill_worker_once(flag), **ASKED)
    assert flag.exists()
    assert_same_weights(found, undisturbed)
    assert (found.timing("zeros-80") is not None) == (not seen)
    assert "fine-tune epoch 2/2" in (found.folder / "zeros-80" / "log.txt").read_text()


def test_a_run_that_kills_every_worker_is_given_up_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it tells what it does each time."""
    monkeypatch.setattr(ray_pool, "MOST_LOSSES", 2)
    heard: list[Any] = []
    monkeypatch.setattr(Board, "hear", lambda board, name, news: heard.append((name, type(news))))

    def deadly(model: nn.Module, batch: Any) -> torch.Tensor:
        if torch.is_grad_enabled() and any((weight == 0).sum() > 9 for weight in model.parameters()):
            os.kill(os.getpid(), signal.SIGKILL)
        return classification_loss(model, batch)

    found = small_sweep(tmp_path / "sweep", at_once=2, loss=deadly)
    zeros, channels = found.runs
    assert zeros.failure == "Its worker was lost (WorkerCrashedError), 2 times in a row; see its log."
    assert channels.finished
    assert heard.count(("zeros-80", Lost)) == 1
    assert ("zeros-80", Step) in heard


def test_a_job_on_a_machine_that_has_fallen_silent_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray waits for minutes more for what runs there, although it knows that the machine is gone."""
    monkeypatch.setattr(ray_pool, "_SECONDS_BETWEEN_ROLL_CALLS", 0)
    nodes, heard = ray.nodes, list[Any]()

    def hear(name: str, news: Any) -> None:
        heard.append(news)
        alive = isinstance(news, Lost)  # one that is back, or another, takes the job
        monkeypatch.setattr(ray, "nodes", lambda: [{**node, "Alive": alive} for node in nodes()])

    def waits_once(worker: Any) -> int:
        worker.tell(News())
        if not (tmp_path / "again").exists():
            (tmp_path / "again").touch()
            time.sleep(600)
        return 7

    with open_pool(tmp_path, 2, at_once=2) as pool:
        ((_, outcome),) = pool.run([Job("waits", waits_once)], hear)
    assert outcome == 7
    assert [news for news in heard if isinstance(news, Lost)] == [Lost("its machine does not answer")]


def test_news_reach_the_desk_as_bytes_for_which_it_need_not_import_torch() -> None:
    """Its start would hold up the first run by a second or more."""
    sent: list[Any] = []
    desk = SimpleNamespace(tell=SimpleNamespace(remote=lambda job, news: sent.append(news)))
    ray_pool._There(desk, "zeros-80", Path()).tell(Step("train", 0.5))
    assert [type(news) for news in sent] == [bytes]


def test_an_error_is_not_tried_again(tmp_path: Path) -> None:
    def fails(worker: Any) -> None:
        with (tmp_path / "tries").open("a") as tries:
            tries.write("x")
        raise ValueError("no such layer")

    with open_pool(tmp_path, 2, at_once=2) as pool:
        ((_, outcome),) = pool.run([Job("fails", fails, ("folder",))], lambda name, news: None)
    assert outcome == Failed("ValueError: no such layer")
    assert (tmp_path / "tries").read_text() == "x"
    assert "Traceback" in (tmp_path / "folder" / "log.txt").read_text()


def test_nothing_runs_beside_a_job_that_measures_time(tmp_path: Path) -> None:
    def spans(worker: Any) -> tuple[float, float]:
        began = time.monotonic()
        time.sleep(0.3)
        return began, time.monotonic()

    jobs = [Job("a", spans), Job("alone", spans, alone=True), Job("b", spans), Job("c", spans)]
    with open_pool(tmp_path, 4, at_once=2) as pool:
        ended = {job.name: outcome for job, outcome in pool.run(jobs, lambda name, news: None)}
    began, until = ended.pop("alone")
    assert all(end <= began or start >= until for start, end in ended.values())


def test_jobs_that_are_not_waited_for_are_ended(tmp_path: Path) -> None:
    def long(worker: Any) -> None:
        (tmp_path / str(os.getpid())).touch()
        time.sleep(600)

    def interrupt(name: str, news: Any) -> None:
        raise KeyboardInterrupt

    with open_pool(tmp_path, 2, at_once=2) as pool:
        ended = pool.run([Job("long", long), Job("quick", lambda worker: worker.tell(News()))], interrupt)
        with pytest.raises(KeyboardInterrupt):
            list(ended)
    deadline = time.monotonic() + 60
    while any(psutil.pid_exists(int(file.name)) for file in tmp_path.iterdir() if file.name.isdigit()):
        assert time.monotonic() < deadline, "the worker still runs"
        time.sleep(0.2)


def test_sensitivity_after_training_is_found_side_by_side() -> None:
    data = DataLoader(blobs(64, seed=1), 32)
    asked: dict[str, Any] = {"amounts": [0.5], "finetune": 1, "train_data": DataLoader(blobs(), 32, shuffle=True)}
    image = blobs(2).tensors[0]
    alone, pooled = (
        secateur.sensitivity(trained_convnet(), image, data, at_once=at_once, progress=False, **asked)
        for at_once in (1, 2)
    )
    assert pooled == alone


def test_two_processes_train_one_run(tmp_path: Path) -> None:
    found = small_sweep(tmp_path / "sweep", [secateur.Channels(0.5)], processes=2, at_once=2)
    settings = (found.folder / "channels-50" / "run.json").read_text()
    assert '"processes": 2' in settings
    assert found.runs[0].finished


def test_what_cannot_be_sent_to_a_worker_is_told(tmp_path: Path) -> None:
    def loss(model: nn.Module, batch: Any, lock: Any = threading.Lock()) -> torch.Tensor:  # noqa: B008
        return classification_loss(model, batch)

    with pytest.raises(UsageError, match=r"cannot be sent to other processes .*use at_once=1"):
        small_sweep(tmp_path / "sweep", at_once=2, loss=loss)


def test_a_cluster_through_a_client_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://somewhere:10001")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(UsageError, match="run the command on a machine of the cluster"):
        small_sweep(tmp_path / "sweep", at_once=2)
