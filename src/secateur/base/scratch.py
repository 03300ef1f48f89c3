"""Private folders for what is being written, and locks, which tell a living program from a killed one.

The kernel lets go of a lock when its holder ends, however it ends. An age could not tell a slow save from a killed one,
and the number of a process says nothing on another machine or in another container.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX, _SUFFIX = ".secateur-", ".partial"
_NAME = re.compile(rf"{re.escape(_PREFIX)}\w{{8}}{re.escape(_SUFFIX)}")


def try_lock(descriptor: int, wait: bool = False) -> bool:
    """False where somebody else holds the lock. Raises an OSError where the file system knows no locks."""
    import fcntl  # not on every system

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """For one program at a time; where the file system knows no locks, for any."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            try_lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def private_folder(place: Path) -> Iterator[Path]:
    """A new folder in `place`, of a random name, that nobody else may enter; it goes at the end.

    Whoever made `place` cannot have put a link there for us to write through. Those that killed programs left go first.
    """
    place.mkdir(parents=True, exist_ok=True)
    for entry in [Path(entry) for entry in os.scandir(place) if _NAME.fullmatch(entry.name)]:
        _remove_unless_held(entry)
    folder, descriptor = _new_folder(place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _new_folder(place: Path) -> tuple[Path, int]:
    """With a lock, where the file system knows one."""
    while True:
        folder = Path(tempfile.mkdtemp(_SUFFIX, _PREFIX, place))
        with suppress(FileNotFoundError):  # in the moment before it is locked, another program may take it for left
            descriptor = os.open(folder, os.O_RDONLY)
            if _is_ours(descriptor) and folder.exists():
                return folder, descriptor
            os.close(descriptor)


def _is_ours(descriptor: int) -> bool:
    try:
        return try_lock(descriptor)
    except OSError:
        return True


def _remove_unless_held(folder: Path) -> None:
    """Where the file system knows no locks, nobody can tell, and it stays."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if try_lock(descriptor):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
