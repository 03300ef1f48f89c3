"""One process at a time works on the folder of a run; another one is told which.

The kernel lets go of the lock when its holder ends, so one that was killed blocks nobody.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from secateur.base import (
    Count,
    Label,
    SecateurError,
    UsageError,
    from_json,
    parse_json,
    saving,
    to_json,
    try_lock,
)

LOCK_FILE = "run.lock"
_MOST_BYTES = 4096

_held: set[int] = set()


def _let_go_of_all() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    # A process that loads data would hold the lock, too, and outlive a killed run by some seconds.
    os.register_at_fork(after_in_child=_let_go_of_all)


class RunInUse(UsageError):
    """Another process works on the run."""


@dataclass(frozen=True)
class _Holder:
    """What the file says of the process that holds it."""

    process: Count
    host: Label
    since: Label


class RunLock:
    """Of a folder that exists. Where the file system knows no locks, everybody gets it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / LOCK_FILE
        self._descriptor: int | None = None

    def take(self) -> None:
        """Refuses the folder if another process works there."""
        while self._descriptor is None:
            with saving(self._file):
                descriptor = self._open()
            try:
                self._require_free(descriptor)
                if self._is_still(descriptor):  # otherwise its last holder has just ended and taken it away
                    now = time.strftime("%Y-%m-%d %H:%M")
                    holder = _Holder(os.getpid(), socket.gethostname(), now)
                    with saving(self._file):
                        os.truncate(descriptor, 0)
                        os.pwrite(descriptor, json.dumps(to_json(holder)).encode(), 0)
                    self._descriptor = descriptor
                    _held.add(descriptor)
            finally:
                if self._descriptor is None:
                    os.close(descriptor)

    def give_back(self) -> None:
        if self._descriptor in _held:
            with suppress(OSError):
                self._file.unlink()
            _held.remove(self._descriptor)
            os.close(self._descriptor)
        self._descriptor = None

    def _open(self) -> int:
        """Never through a link, which somebody may have left there for us to write through."""
        with suppress(FileNotFoundError):
            found = self._file.lstat()
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise SecateurError(f"{self._file} is no file that a run left there; delete it.")
        return os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    def _require_free(self, descriptor: int) -> None:
        with suppress(OSError):
            if not try_lock(descriptor):
                raise RunInUse(
                    f"{self._folder} is in use by {_holder(descriptor)}; wait until it ends, or choose another folder."
                )

    def _is_still(self, descriptor: int) -> bool:
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(descriptor), self._file.stat())
        return False


def _holder(descriptor: int) -> str:
    try:
        told = from_json(_Holder, parse_json(os.pread(descriptor, _MOST_BYTES, 0)))
    except ValueError:  # it has not written it yet
        return "another process"
    return f"process {told.process} on {told.host} since {told.since}"
