"""One job in several processes that train together, as torchrun would start them."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing

from secateur.base import SecateurError
from secateur.studies.pool.jobs import Failed, Tell, logged, outcome_of

_SECONDS_TO_END = 10


def in_processes(count: int, work: Callable[[Tell], Any], tell: Tell, log: Path) -> Any:
    """What `work` returns in the first of the processes, and what it tells there. One that fails ends them all; what
    they print goes to the log."""
    if count == 1:
        return work(tell)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    same = count, port, torch.get_num_threads(), _pickled(work), log
    ranks = [context.Process(target=_rank, args=(rank, *same, sender if rank == 0 else None)) for rank in range(count)]
    for process in ranks:
        process.start()
    sender.close()
    try:
        outcome = _listen(receiver, ranks, tell)
    finally:
        for process in ranks:
            process.join(_SECONDS_TO_END)
            process.kill()
    if isinstance(outcome, Failed):
        raise SecateurError(outcome.reason)
    return outcome


def _listen(receiver: Connection, ranks: Any, tell: Tell) -> Any:
    """Until the first process has returned something, or any has failed, for which the others would wait in vain."""
    while True:
        wait([receiver, *(process.sentinel for process in ranks)])
        while receiver.poll():
            try:
                ended, news = receiver.recv()
            except EOFError:
                return Failed("The processes of the run ended without a result; see its log.")
            if ended:
                return news
            tell(news)
        if any(process.exitcode for process in ranks):
            for process in ranks:
                process.kill()
            return Failed("One of the run's processes failed; see its log.")


def _rank(rank: int, count: int, port: int, threads: int, told: bytes, log: Path, sender: Connection | None) -> None:
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    own, all_of_them = str(rank), str(count)
    os.environ |= {"RANK": own, "LOCAL_RANK": own, "WORLD_SIZE": all_of_them, "LOCAL_WORLD_SIZE": all_of_them}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if not torch.cuda.is_available():
        os.environ["ACCELERATE_USE_CPU"] = "true"
    torch.set_num_threads(threads)
    with logged(log):
        outcome = outcome_of(partial(pickle.loads(told), _news_through(sender)))
    if sender is not None:
        sender.send((True, outcome))
    # Not through the end of the interpreter: threads of gloo that still run then can crash it.
    os._exit(isinstance(outcome, Failed))


def _news_through(sender: Connection | None) -> Tell:
    return (lambda news: None) if sender is None else (lambda news: sender.send((False, news)))


def _end_with(parent: int) -> None:
    """One that is killed cannot end its processes, and they would hold on to the run."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _pickled(work: Callable[[Tell], Any]) -> bytes:
    """With Ray's pickler, if it is there, also of functions and classes that no module holds."""
    try:
        from ray import cloudpickle
    except ImportError:
        return pickle.dumps(work)
    return bytes(cloudpickle.dumps(work))
