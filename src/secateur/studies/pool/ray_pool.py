"""The pool on Ray: as many jobs side by side as cores allow, on this machine or on all of a cluster.

A job whose worker or machine is lost is started again elsewhere. Workers that see the pool's folder, as all on one
machine do, work in it; others work in a copy, and bring what they keep home to the desk, which is on our machine.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import shutil
import socket
import tempfile
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from secateur import __version__
from secateur.base import UsageError, in_brief, make_folder, write_text
from secateur.checkpoint import MANIFEST_FILE
from secateur.studies.pool.desk import Desk
from secateur.studies.pool.folder_changes import Seen, changes, look, make_so
from secateur.studies.pool.jobs import Failed, Hear, Job, Lost, News, Shared, Value, attempt

MOST_LOSSES = 5
"""How often a job may lose its worker without getting any further, until it counts as the cause."""
_SECONDS_BETWEEN_LOOKS = 0.3
_SECONDS_BETWEEN_ROLL_CALLS = 5.0
_TOKEN_FILE = ".secateur-pool"
_LEFT_AT_HOME = ("**/.git", "**/.venv", "**/venv", "**/__pycache__")
"""Of the current folder, what no task needs on another machine."""


@contextmanager
def ray_pool(root: Path, jobs: int, at_once: int | None, cores: int | None, processes: int) -> Iterator[RayPool]:
    """On the cluster at RAY_ADDRESS, or on one that lasts as long as the pool, on this machine alone."""
    import ray

    ours = not ray.is_initialized()
    if ours:
        _connect(root)
    token = root / _TOKEN_FILE
    make_folder(root)
    write_text(token, uuid.uuid4().hex)
    try:
        with _in_silence():
            yield RayPool(root, token.read_text(), jobs, at_once, cores, processes)
    finally:
        token.unlink(missing_ok=True)
        if ours:
            ray.shutdown()


def _connect(root: Path) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as later versions will have it, who warn of it
    import ray

    address = os.environ.get("RAY_ADDRESS")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        with _on_loopback():
            ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        return
    if address.startswith("ray://"):
        raise UsageError("RAY_ADDRESS begins with ray://; run the command on a machine of the cluster instead.")
    here, own = Path.cwd(), root.absolute()
    results = [f"/{own.relative_to(here).as_posix()}/"] if own.is_relative_to(here) and own != here else []
    shipped = {"working_dir": str(here), "excludes": [*_LEFT_AT_HOME, *results]}
    try:
        ray.init(address=address, runtime_env=shipped, **quiet)
    except Exception as error:  # Ray raises anything, of the network and of what is to be shipped
        raise UsageError(
            f"The Ray cluster at {address} cannot be used ({in_brief(error)}); check RAY_ADDRESS, RAY_AUTH_MODE=token "
            "where it asks for a token, and that the current folder holds no large files: what .gitignore names stays."
        ) from error


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Ray takes the loopback address for one that others have to reach, and would listen to all of the network."""
    from ray._private import services

    resolved = getattr(services, "resolve_ip_for_localhost", None)
    services.resolve_ip_for_localhost = lambda host: host
    try:
        yield
    finally:
        services.resolve_ip_for_localhost = resolved


@contextmanager
def _in_silence() -> Iterator[None]:
    """Ray prints a page for every worker that is lost, and has no setting for that; we tell it in a line."""
    from ray._private import worker

    prints = getattr(worker, "print_to_stdstream", None)
    worker.print_to_stdstream = lambda *args, **details: None
    try:
        yield
    finally:
        worker.print_to_stdstream = prints


class RayPool:
    def __init__(
        self, root: Path, token: str, jobs: int, at_once: int | None, cores: int | None, processes: int
    ) -> None:
        import ray

        self._ray = ray
        self._root, self._token, self._processes = root.absolute(), token, processes
        sizes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        self._limit = at_once
        self._cores = cores or _share(sizes, min(jobs, at_once or jobs), processes)
        if not any(size >= self._cores for size in sizes):
            raise UsageError(f"No machine has {self._cores} cores for a run; the largest has {max(sizes)}.")
        self._gpus = processes if ray.cluster_resources().get("GPU", 0) >= processes else 0
        self._slots = sum(size // self._cores for size in sizes)
        here = _on_node(ray.get_runtime_context().get_node_id())
        # Restarted wherever it was killed: all that it knows is on the disk, but for news, which only a person reads.
        options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
        desk = ray.remote(Desk).options(scheduling_strategy=here, **options)
        self._desk = desk.remote(str(self._root), MANIFEST_FILE)
        self._start = ray.remote(_work)
        self._places: dict[str, str] = {}
        """The node that each job has said it is on."""
        self._next_roll_call = 0.0
        # All workers get ready at once, before the first job, which may need only one of them.
        ready = ray.remote(_get_ready).options(num_cpus=self._cores, max_retries=0)
        for _ in range(min(jobs, self.at_once)):
            ready.remote()

    @property
    def at_once(self) -> int:
        return min(self._slots, self._limit or self._slots)

    def share(self, value: Value) -> Shared[Value]:
        try:
            return _Stored(self._ray.put(value))
        except Exception as error:  # whatever their own classes raise when they are pickled
            raise UsageError(
                f"The model or the data cannot be sent to other processes ({in_brief(error)}); use at_once=1, or a "
                "task file, which each of them runs for itself."
            ) from error

    def run(self, jobs: Sequence[Job], hear: Hear) -> Iterator[tuple[Job, Any]]:
        waiting, running, losses = deque(jobs), dict[Any, Job](), Counter[str]()
        try:
            while waiting or running:
                while waiting and self._may_start(waiting[0], list(running.values())):
                    job = waiting.popleft()
                    running[self._submit(job)] = job
                ended, _ = self._ray.wait(list(running), timeout=_SECONDS_BETWEEN_LOOKS)
                self._take_news(losses, hear)
                outcomes = self._silent(running) | {reference: self._outcome(reference) for reference in ended}
                for reference, outcome in outcomes.items():
                    job = running.pop(reference)
                    losses[job.name] += isinstance(outcome, Lost)
                    if isinstance(outcome, Lost) and losses[job.name] < MOST_LOSSES:
                        hear(job.name, outcome)
                        waiting.append(job)
                    else:
                        yield job, _given_up(outcome) if isinstance(outcome, Lost) else outcome
        finally:
            for reference in running:
                self._ray.cancel(reference, force=True)

    def _take_news(self, losses: Counter[str], hear: Hear) -> None:
        for name, pickled in self._ray.get(self._desk.take.remote()):
            news = pickle.loads(pickled)
            if isinstance(news, _Arrived):
                self._places[name] = news.node
                continue
            if news.lasting:
                losses[name] = 0
            hear(name, news)

    def _silent(self, running: Mapping[Any, Job]) -> dict[Any, Any]:
        """What is on machines that are gone. Ray learns of one without power or network, but waits on for its jobs."""
        if time.monotonic() < self._next_roll_call:
            return {}
        self._next_roll_call = time.monotonic() + _SECONDS_BETWEEN_ROLL_CALLS
        gone = {node["NodeID"] for node in self._ray.nodes() if not node["Alive"]}
        silent = [reference for reference, job in running.items() if self._places.get(job.name) in gone]
        for reference in silent:
            self._ray.cancel(reference, force=True)  # should the machine come back
        return dict.fromkeys(silent, Lost("its machine does not answer"))

    def _may_start(self, job: Job, running: Sequence[Job]) -> bool:
        if any(each.alone for each in (job, *running)):
            return not running
        return self._limit is None or len(running) < self._limit

    def _submit(self, job: Job) -> Any:
        node = self._measuring_node() if job.alone else None
        size = int(node["Resources"]["CPU"]) if node else self._cores
        threads = max(1, (size if job.all_cores else self._cores) // self._processes)
        options: dict[str, Any] = {"num_cpus": size, "num_gpus": self._gpus, "max_retries": 0, "name": job.name}
        if node is not None:
            options["scheduling_strategy"] = _on_node(node["NodeID"])
        place = self._desk, str(self._root), self._token
        self._places.pop(job.name, None)
        return self._start.options(**options).remote(job, *place, threads, __version__)

    def _measuring_node(self) -> dict[str, Any]:
        """The same one every time while it is there: ours, if it computes, or else the largest."""
        ours = self._ray.get_runtime_context().get_node_id()
        fit = [
            node
            for node in self._ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0) >= self._cores
            if node["Resources"].get("GPU", 0) >= self._gpus
        ]
        if not fit:
            raise UsageError(f"No machine of the cluster has {self._cores} cores any more; start another one.")
        return max(fit, key=lambda node: (node["NodeID"] == ours, node["Resources"]["CPU"], node["NodeID"]))

    def _outcome(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:  # before or after the job itself: it cannot be sent there, or back
            return Failed(in_brief(error.cause or error))
        except errors.OutOfMemoryError:
            return Lost("its machine ran out of memory", "run fewer at once")
        except errors.RayError as error:
            return Lost(f"its worker was lost ({type(error).__name__})")


@dataclass(frozen=True)
class _Arrived(News):
    """Told by a job that begins."""

    node: str


@dataclass(frozen=True)
class _Stored(Generic[Value]):
    reference: Any

    def get(self) -> Value:
        import ray

        found: Value = ray.get(self.reference)
        return found


def _share(sizes: Sequence[int], jobs: int, processes: int) -> int:
    """The cores of each job: all of them together use what there is, and each fits on every machine."""
    computing = [size for size in sizes if size] or [1]
    return max(processes, 1, min(min(computing), sum(computing) // max(1, jobs)))


def _given_up(lost: Lost) -> Failed:
    return Failed(f"{lost.reason[0].upper()}{lost.reason[1:]}, {MOST_LOSSES} times in a row; {lost.advice}.")


def _on_node(node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


def _get_ready() -> None:
    """What takes a new worker seconds: importing torch, and what its optimizers import when the first one is made.

    All of that stays, so garbage is not looked for in it at the end of every run.
    """
    if gc.get_freeze_count():
        return
    with suppress(ImportError):  # the first job will tell
        for module in ("secateur.loop.pruning", "torch._dynamo"):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()


def _work(job: Job, desk: Any, root: str, token: str, threads: int, version: str) -> Any:
    """Runs where Ray puts it."""
    import ray
    import torch

    _get_ready()
    if version != __version__:
        here = f"{socket.gethostname()} has secateur {__version__}"
        return Failed(f"{here}, and the sweep was started with {version}; install the same everywhere.")
    torch.set_num_threads(threads)
    with _place(desk, job, Path(root), token) as worker:
        worker.tell(_Arrived(node=ray.get_runtime_context().get_node_id()))
        outcome = attempt(job, worker)
        if job.folders:
            worker.keep(job.folders[0])
        return outcome


@contextmanager
def _place(desk: Any, job: Job, root: Path, token: str) -> Iterator[_There]:
    if _reads(root / _TOKEN_FILE) == token:
        yield _There(desk, job.name, root)
        return
    copy = Path(tempfile.mkdtemp(prefix="secateur-"))
    try:
        yield _Elsewhere(desk, job.name, copy, job.folders)
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _reads(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


class _There:
    """A worker that sees the pool's folder."""

    def __init__(self, desk: Any, job: str, root: Path) -> None:
        self.root = root
        self._desk, self._job = desk, job

    def tell(self, news: News) -> None:
        self._desk.tell.remote(self._job, pickle.dumps(news))

    def keep(self, folder: str) -> None:
        """It is at home already."""

    def bring(self, file: Path) -> Path:
        return file


class _Elsewhere(_There):
    """One that has a copy of the folders that its job needs."""

    def __init__(self, desk: Any, job: str, root: Path, folders: Sequence[str]) -> None:
        super().__init__(desk, job, root)
        self._seen: dict[str, Seen] = {}
        for folder in folders:
            make_so(root / folder, self._answer(desk.fetch.remote(folder)), last=MANIFEST_FILE)
            self._seen[folder] = look(root / folder)

    def keep(self, folder: str) -> None:
        told = changes(self.root / folder, self._seen[folder])
        self._answer(self._desk.keep.remote(folder, told))
        self._seen[folder] = look(self.root / folder)

    def bring(self, file: Path) -> Path:
        here = self.root / "brought" / file.name
        make_folder(here.parent)
        here.write_bytes(self._answer(self._desk.read.remote(str(file.absolute()))))
        return here

    def _answer(self, reference: Any) -> Any:
        import ray

        return ray.get(reference)
