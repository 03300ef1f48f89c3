"""The files of a folder, exchanged so that whatever kills the program leaves the old ones or the new ones.

New files are written beside the old ones under a name that ends in `.new`. Then the manifest is replaced in one step:
from there on it names the new files, by size and digest. Only then do they take the places of the old ones. A reader
takes of the two files the one that the manifest names, so it does not matter how far the exchange got. What it has
opened stays as it is, whatever is saved meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

from safetensors.torch import save_file
from torch import Tensor

from secateur.base import (
    SecateurError,
    flush_folder,
    locked_folder,
    make_folder,
    open_regular,
    replace_file,
    saving,
)
from secateur.checkpoint.sealed import SealedManifest, StoredFile

M = TypeVar("M", bound=SealedManifest)

NEW = ".new"
_MOST_SAVES = 100


@contextmanager
def whole_files(folder: Path, kind: type[M]) -> Iterator[tuple[M, Mapping[str, BinaryIO]]]:
    """The manifest and the files that it was written with, each opened once and checked then.

    Files that do not fit a manifest are damaged, unless another manifest has taken its place: then a save came between.
    """
    for _ in range(_MOST_SAVES):
        with ExitStack() as until_read:
            opened = until_read.enter_context(kind.open(folder))
            manifest = kind.read(opened)
            try:
                files = {name: _whole_file(folder, name, manifest, until_read) for name in manifest.stored_files()}
            except SecateurError:
                if _is_still(opened, folder / kind.file_name):
                    raise
                continue
            yield manifest, files
            return
    raise SecateurError(f"{folder} is saved to all the time; wait until that ends.")


def _is_still(opened: BinaryIO, file: Path) -> bool:
    """Its number cannot be another file's while it is open."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(opened.fileno()), file.stat())
    return False


def _whole_file(folder: Path, name: str, manifest: SealedManifest, until_read: ExitStack) -> BinaryIO:
    """The file that the manifest was written with, at its place or, if the exchange is under way, beside it."""
    stored = manifest.stored_files()[name]
    for file in (folder / (name + NEW), folder / name):  # in the order in which it moves
        with suppress(OSError):
            opened = until_read.enter_context(open_regular(file))
            if stored.is_in(opened):
                return opened
    raise SecateurError(
        f"{folder / name} is damaged, cut short or missing: it is not the file that {manifest.file_name} was saved "
        "with; save it again, or copy it again."
    )


def exchange_files(
    folder: Path,
    kind: type[SealedManifest],
    tensors: Mapping[str, Mapping[str, Tensor]],
    manifest_of: Callable[[Mapping[str, StoredFile]], SealedManifest],
) -> None:
    """Writes files of tensors, by their names, and the manifest that `manifest_of` makes for them."""
    make_folder(folder)
    with saving(folder / kind.file_name), locked_folder(folder):
        with suppress(SecateurError), kind.open(folder) as old:  # without a readable one there is nothing to protect
            _put_in_place(folder, kind.read(old))  # what an interrupted save left to do
        try:
            manifest = manifest_of({name: _staged(folder, name, each) for name, each in tensors.items()})
            raw = manifest.to_bytes()
        except BaseException:
            for name in tensors:
                with suppress(OSError):
                    (folder / (name + NEW)).unlink(missing_ok=True)
            raise
        flush_folder(folder)
        with replace_file(folder / kind.file_name) as partial:
            partial.write_bytes(raw)
        flush_folder(folder)
        _put_in_place(folder, manifest)
        flush_folder(folder)


def _staged(folder: Path, name: str, tensors: Mapping[str, Tensor]) -> StoredFile:
    """Writes a file beside the one that it is to replace."""
    file = folder / (name + NEW)
    with replace_file(file) as partial:
        save_file(dict(tensors), partial, metadata={"format": "pt"})
    with open_regular(file) as opened:
        return StoredFile.of(opened)


def _put_in_place(folder: Path, manifest: SealedManifest) -> None:
    files = manifest.stored_files()
    for name in manifest.beside_it:
        staged = folder / (name + NEW)
        if name not in files:
            (folder / name).unlink(missing_ok=True)
        elif _holds(staged, files[name]):
            staged.replace(folder / name)
        staged.unlink(missing_ok=True)


def _holds(file: Path, stored: StoredFile) -> bool:
    with suppress(OSError), open_regular(file) as opened:
        return stored.is_in(opened)
    return False
