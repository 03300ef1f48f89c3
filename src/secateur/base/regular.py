"""Files from a folder that anybody may have made: regular ones only, and never more of them than is needed."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from secateur.base.errors import SecateurError

# The plan of a model of 70 billion parameters takes about 20 MB; parsing takes up to 25 times the memory of the text.
MOST_BYTES = 64 << 20


def open_regular(path: str | Path) -> BinaryIO:
    """The file, to read. Raises an OSError where it is a folder, a pipe, which might never end, or a device."""
    _require_regular(Path(path).stat())  # to open a device may be harm enough
    opened = open(path, "rb", opener=_without_waiting)  # noqa: SIM115
    try:
        _require_regular(os.fstat(opened.fileno()))
    except BaseException:
        opened.close()
        raise
    return opened


def read_regular(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """All of the file. Raises an OSError where it is none, and a ValueError where it is longer than `most`."""
    with open_regular(path) as opened:
        raw = opened.read(most + 1)
    if len(raw) > most:
        raise ValueError(f"it has more than {most:,} bytes, more than it needs")
    return raw


def require_within(folder: Path, file: Path) -> None:
    """Refuses a link out of the folder: what is made of the file is left in the folder, for its author to read."""
    if not file.resolve().is_relative_to(folder.resolve()):
        raise SecateurError(f"{file} is a link to a file outside its folder; put the file itself there.")


def _require_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is not a regular file")


def _without_waiting(path: str, flags: int) -> int:
    """A pipe that took the file's place since would otherwise wait for somebody to write into it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
