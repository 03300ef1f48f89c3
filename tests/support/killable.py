"""A short pruning run that the tests kill, starve of disk space or feed with NaN, in a process of its own."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import secateur
from secateur.loop.task import accuracy
from tests.support.forked import FORKS
from tests.support.models import ConvNet, blobs

TRAIN, FINETUNE = 8, 4


def run(folder: Path, metric: Callable[[nn.Module, Iterable[Any]], float] = accuracy) -> secateur.Result:
    """The same call every time; the data are shuffled, and augmented from the global random state."""
    torch.set_num_threads(1)
    torch.manual_seed(0)

    def noisy_loss(model: nn.Module, batch: Any) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(model(images + 0.1 * torch.randn_like(images)), labels)

    return secateur.prune(
        ConvNet(),
        0.9,
        # A generator of its own starts anew with every process: the order of the data must not depend on it.
        train_data=DataLoader(blobs(), 16, shuffle=True, generator=torch.Generator()),
        eval_data=DataLoader(blobs(128, seed=1), 64),
        loss=noisy_loss,
        metric=metric,
        train=TRAIN,
        repair=0,
        finetune=FINETUNE,
        schedule="iterative",
        cuts=2,
        recipe=secateur.Recipe(lr=3e-3, distill=0.3),
        run_dir=folder,
        progress=False,
    )


def start(folder: Path) -> BaseProcess:
    """Starts the run and returns once it is about to begin."""
    receiver, sender = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=_announce_and_run, args=(folder, sender))
    process.start()
    receiver.recv()
    return process


def run_with_full_disk(folder: Path, metrics_before: int) -> str:
    """Lets every write fail after that many measurements, and returns the error's words."""
    receiver, sender = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=_starve, args=(folder, metrics_before, sender))
    process.start()
    message: str = receiver.recv()
    process.join()
    return message


def _announce_and_run(folder: Path, sender: Connection) -> None:
    sender.send("ready")
    run(folder)


def _starve(folder: Path, metrics_before: int, sender: Connection) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that a write past the limit is an error, not the end
    calls = 0

    def metric(model: nn.Module, data: Iterable[Any]) -> float:
        nonlocal calls
        calls += 1
        if calls > metrics_before:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        return accuracy(model, data)

    metric.__name__ = metric.__qualname__ = "accuracy"
    try:
        run(folder, metric)
        sender.send("no error")
    except secateur.SecateurError as error:
        sender.send(str(error))
