"""Processes that start with torch imported already, so that dozens of them cost no more than a few: by a fork server.

It is the same one for every test, and preloads what all of them need.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import CompletedProcess

from accelerate.state import AcceleratorState

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "tests.support.killable",
        "tests.support.quick_torch",
        "secateur.loop.pruning",
        "secateur.commands.app",
        "secateur.commands.task_file",
        "secateur.couple.rules",
        "secateur.pages.consoles",
        "secateur.pages.report_writing",
        "secateur.studies.fashion_demo",
        "plotly.graph_objs",
        "plotly.offline",
        "torch._dynamo",
        "torch.distributed.fsdp",
        "tests.support.frozen",
    ]
)


class Program:
    """Code that runs as `python -c` would run it, with arguments, in a folder and with an environment of its own."""

    def __init__(
        self,
        code: str,
        *args: object,
        folder: Path | None = None,
        environment: dict[str, str] | None = None,
        terminal: str | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        self._said = tempfile.TemporaryDirectory()
        errors = terminal or self._file("stderr")
        where = (str(folder or Path.cwd()), self._file("stdout"), errors)
        own = {**os.environ, **(environment or {})}
        self._process = FORKS.Process(target=_run_code, args=(code, [str(arg) for arg in args], where, own, before))
        self._process.start()

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGINT)

    def wait(self, seconds: float = 300) -> CompletedProcess[str]:
        self._process.join(seconds)
        code = self._process.exitcode
        self._process.kill()
        assert code is not None, f"the program did not end within {seconds} s"
        said = [path.read_text() if (path := Path(self._file(name))).exists() else "" for name in ("stdout", "stderr")]
        self._said.cleanup()
        return CompletedProcess([], code, *said)

    def _file(self, name: str) -> str:
        return str(Path(self._said.name, name))


class Interpreter:
    """A process that runs one script after the other, so that what is heavy is imported once for all of them."""

    def __init__(self) -> None:
        self._ours, theirs = FORKS.Pipe()
        self._process = FORKS.Process(target=_run_scripts, args=(theirs,))
        self._process.start()
        theirs.close()

    def run(self, script: Path, seconds: float = 300) -> None:
        """In the script's folder, as a program of its own."""
        self._ours.send((script, dict(os.environ)))
        assert self._ours.poll(seconds), f"the script did not end within {seconds} s"
        error = self._ours.recv()
        assert error is None, error

    def end(self) -> None:
        self._process.kill()
        self._process.join()


def run_ranks(script: Path, *args: str, processes: int, folder: Path, seconds: float = 300) -> str:
    """Runs the script in that many processes that find each other as torchrun's do; returns what all of them print."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = [folder / f"told-{rank}.txt" for rank in range(processes)]
    ranks = [
        FORKS.Process(target=_run_rank, args=(script, args, rank, processes, port, told[rank], dict(os.environ)))
        for rank in range(processes)
    ]
    for process in ranks:
        process.start()
    try:
        _wait_for_all(ranks, seconds)
    finally:
        for process in ranks:
            process.kill()
            process.join()
    codes = [process.exitcode for process in ranks]
    assert codes == [0] * processes, "\n".join([f"exit codes {codes}", *(file.read_text() for file in told)])
    return "".join(file.read_text() for file in told)


def _wait_for_all(ranks: list[BaseProcess], seconds: float) -> None:
    """Until all have ended, or one has failed, for which the others would wait in vain."""
    deadline = time.monotonic() + seconds
    while any(process.is_alive() for process in ranks) and not any(process.exitcode for process in ranks):
        assert time.monotonic() < deadline, f"the processes did not end within {seconds} s"
        time.sleep(0.02)


def _run_rank(
    script: Path, args: tuple[str, ...], rank: int, processes: int, port: int, told: Path, environment: dict[str, str]
) -> None:
    own, all_of_them = str(rank), str(processes)
    places = {"RANK": own, "LOCAL_RANK": own, "WORLD_SIZE": all_of_them, "LOCAL_WORLD_SIZE": all_of_them}
    _live_in({**environment, **places, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    _say_into(str(told), str(told))
    sys.argv = [str(script), *args]
    faulthandler.enable()
    runpy.run_path(str(script), run_name="__main__")
    sys.stdout.flush()
    os._exit(0)  # threads of gloo that still run while the interpreter ends can crash it, long after the script is done


def _run_code(
    code: str,
    args: list[str],
    where: tuple[str, str, str],
    environment: dict[str, str],
    before: Callable[[], None] | None,
) -> None:
    folder, output, errors = where
    os.chdir(folder)
    _live_in(environment)
    _say_into(output, errors)
    if before is not None:
        before()
    sys.argv = ["-c", *args]
    sys.path.insert(0, "")
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


def _run_scripts(todo: Connection) -> None:
    _say_into(os.devnull, os.devnull)
    path = [*sys.path]
    while True:
        script, environment = todo.recv()
        gc.collect()
        gc.freeze()
        os.chdir(script.parent)
        _live_in(environment)
        sys.argv, sys.path[:] = [str(script)], path
        AcceleratorState._reset_state(reset_partial_state=True)  # of an earlier script
        try:
            runpy.run_path(str(script), run_name="__main__")
        except BaseException:
            todo.send(traceback.format_exc())
        else:
            todo.send(None)


def _live_in(environment: dict[str, str]) -> None:
    """The server has that of the test that started it."""
    os.environ.clear()
    os.environ |= environment


def _say_into(output: str, errors: str) -> None:
    for name, stream in ((output, 1), (errors, 2)):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, stream)
        os.close(file)
