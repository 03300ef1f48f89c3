"""Files and folders that appear whole or not at all, whatever kills the program while they are written."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from secateur.base.errors import NotWritten, SecateurError, UsageError, in_brief
from secateur.base.names import nearest
from secateur.base.scratch import private_folder

_NO_PLACE_FOR_FILES = {
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "the folder is read-only for this user",
    errno.EPERM: "the folder is read-only for this user",
    errno.EEXIST: "it is not a folder",
    errno.ENOTDIR: "it is not a folder",
}
"""More space would not help there."""


@contextmanager
def replace_file(path: str | Path) -> Iterator[Path]:
    """Yields a path to write to; on success the file there takes the place of `path` in one step.

    A link at `path` is replaced, too: nothing is written through it.
    """
    path = Path(path)
    with saving(path), private_folder(path.parent) as folder:
        partial = folder / path.name
        partial.touch(exist_ok=False)
        permissions = partial.stat().st_mode
        yield partial
        partial.chmod(permissions)  # safetensors makes files that only their owner can read
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)


def write_text(path: str | Path, text: str) -> None:
    with replace_file(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="replace")  # a half of a letter fits in no file


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made a folder ({error}); choose another one.") from error


def flush_folder(folder: Path) -> None:
    """Brings the files of a folder, and the folder itself, to the disk, so that they outlast a power cut."""
    for entry in [*(file for file in folder.iterdir() if file.is_file()), folder]:
        with suppress(FileNotFoundError):  # another program may take its own away
            descriptor = os.open(entry, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Turns whatever a writer raises on a full or read-only disk into one sentence.

    torch reports a failed write as RuntimeError and safetensors as an error of its own, so the classes alone
    do not tell; both chain or name the system's error.
    """
    try:
        yield
    except SecateurError:
        raise
    except (OSError, RuntimeError, _safetensor_error()) as error:
        number = getattr(error, "errno", None) or 0
        advice = f"{_free_megabytes(path):,.0f} MB are free there. Free some space or choose another folder"
        if number in _NO_PLACE_FOR_FILES:
            advice = "choose a folder that you may write to"
        raise NotWritten(
            f"{path} could not be written ({error}); {advice}, then start again: what was saved before is intact.",
            _NO_PLACE_FOR_FILES.get(number) or (os.strerror(number) if number else in_brief(error)),
        ) from error


def did_you_mean_path(path: Path, otherwise: str = "check the path.", folder: bool = False) -> str:
    """Ends a sentence that finds no file, or folder, at `path`: with its neighbour that is nearly called so."""
    if path.exists() or not path.parent.is_dir():
        return otherwise
    close = nearest(path.name, [entry.name for entry in path.parent.iterdir() if entry.is_dir() == folder])
    return otherwise if close is None else f"did you mean {path.with_name(close)}?"


def _safetensor_error() -> type[Exception]:
    from safetensors import SafetensorError

    return SafetensorError


def _free_megabytes(path: Path) -> float:
    existing = next((folder for folder in path.absolute().parents if folder.exists()), Path("/"))
    return shutil.disk_usage(existing).free / 1e6
