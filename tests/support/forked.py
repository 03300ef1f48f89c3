"""Processes that start with torch imported already, so that dozens of them cost no more than a few: by a fork server.

It is the same one for every test, and preloads what all of them need.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import socket
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["tests.support.killable", "secateur.loop.pruning", "torch._dynamo", "torch.distributed.fsdp"]
)


def run_ranks(script: Path, *args: str, processes: int, folder: Path, seconds: float = 300) -> str:
    """Runs the script in that many processes that find each other as torchrun's do; returns what all of them print."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = [folder / f"told-{rank}.txt" for rank in range(processes)]
    ranks = [
        FORKS.Process(target=_run_rank, args=(script, args, rank, processes, port, told[rank]))
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
    assert [process.exitcode for process in ranks] == [0] * processes, "\n".join(file.read_text() for file in told)
    return "".join(file.read_text() for file in told)


def _wait_for_all(ranks: list[BaseProcess], seconds: float) -> None:
    """Until all have ended, or one has failed, for which the others would wait in vain."""
    deadline = time.monotonic() + seconds
    while any(process.is_alive() for process in ranks) and not any(process.exitcode for process in ranks):
        assert time.monotonic() < deadline, f"the processes did not end within {seconds} s"
        time.sleep(0.02)


def _run_rank(script: Path, args: tuple[str, ...], rank: int, processes: int, port: int, told: Path) -> None:
    own, all_of_them = str(rank), str(processes)
    os.environ |= {"RANK": own, "LOCAL_RANK": own, "WORLD_SIZE": all_of_them, "LOCAL_WORLD_SIZE": all_of_them}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with told.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = [str(script), *args]
    runpy.run_path(str(script), run_name="__main__")
