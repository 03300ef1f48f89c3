"""The files of a checkpoint, exchanged so that whatever kills the program leaves the old checkpoint or the new one.

New files are written beside the old ones under a name that ends in `.new`. Then the record is replaced in one step:
from there on it names the new files, by size and digest. Only then do they take the places of the old ones. A reader
takes of the two files the one that the record names, so it does not matter how far the exchange got.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from safetensors.torch import save_file
from torch import Tensor

from secateur.base import SecateurError, UsageError, flush_folder, replace_file, saving
from secateur.checkpoint.manifest import EXTRAS_FILE, RECORD_FILE, WEIGHTS_FILE, Record, StoredFile, parse_record
from secateur.checkpoint.strict_json import MOST_BYTES

__all__ = ["Layout", "finish_exchange", "put_in_place", "read_record", "stage", "whole_file"]

NEW = ".new"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Layout:
    """The names in a folder: of the record, which decides, and of the files that it may speak of."""

    record: str
    files: tuple[str, ...]


CHECKPOINT = Layout(RECORD_FILE, (WEIGHTS_FILE, EXTRAS_FILE))


class _Record(Protocol):
    @property
    def files(self) -> Mapping[str, StoredFile]: ...

    def to_bytes(self) -> bytes: ...


def read_record(folder: Path) -> Record:
    file = folder / RECORD_FILE
    if not file.is_file():  # nor a pipe, which would never end
        raise UsageError(f"There is no checkpoint in {folder}; give a folder that secateur.save wrote.")
    with file.open("rb") as opened:
        return parse_record(opened.read(MOST_BYTES + 1), str(file))


def whole_file(folder: Path, name: str, stored: StoredFile, layout: Layout = CHECKPOINT) -> Path:
    """The file that the record was written with, at its place or, after an interrupted exchange, beside it."""
    for file in (folder / name, folder / (name + NEW)):
        if file.is_file() and _is_the_one(file, stored):
            return file
    raise SecateurError(
        f"{folder / name} is damaged, cut short or missing: it is not the file that {layout.record} was saved "
        "with; save it again, or copy it again."
    )


def finish_exchange(folder: Path, read: Callable[[Path], _Record] = read_record, layout: Layout = CHECKPOINT) -> None:
    """Carries out what an interrupted save left to do, before the next one writes over its files."""
    with suppress(SecateurError):  # without a readable record there is nothing to protect
        record = read(folder)
        _exchange(folder, record.files, layout)


def stage(folder: Path, name: str, tensors: Mapping[str, Tensor]) -> StoredFile:
    """Writes a file beside the one that it is to replace."""
    file = folder / (name + NEW)
    with replace_file(file) as partial:
        save_file(dict(tensors), partial, metadata={"format": "pt"})
    return StoredFile(file.stat().st_size, _digest(file))


def put_in_place(folder: Path, record: _Record, layout: Layout = CHECKPOINT) -> None:
    """The record first, which decides; then the files that it names."""
    with saving(folder / layout.record):
        flush_folder(folder)
        with replace_file(folder / layout.record) as partial:
            partial.write_bytes(record.to_bytes())
        flush_folder(folder)
        _exchange(folder, record.files, layout)
        flush_folder(folder)


def _exchange(folder: Path, files: Mapping[str, StoredFile], layout: Layout) -> None:
    for name in layout.files:
        staged = folder / (name + NEW)
        if name not in files:
            (folder / name).unlink(missing_ok=True)
        elif staged.is_file() and _is_the_one(staged, files[name]):
            staged.replace(folder / name)
        staged.unlink(missing_ok=True)


def _is_the_one(file: Path, stored: StoredFile) -> bool:
    return file.stat().st_size == stored.bytes and _digest(file) == stored.digest


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
