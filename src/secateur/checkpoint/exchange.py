"""The files of a folder, exchanged so that whatever kills the program leaves the old ones or the new ones.

New files are written beside the old ones under a name that ends in `.new`. Then the manifest is replaced in one step:
from there on it names the new files, by size and digest. Only then do they take the places of the old ones. A reader
takes of the two files the one that the manifest names, so it does not matter how far the exchange got.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from secateur.base import SecateurError, flush_folder, make_folder, replace_file, saving
from secateur.checkpoint.sealed import SealedManifest, StoredFile

__all__ = ["exchange_files", "whole_file"]

NEW = ".new"


def whole_file(folder: Path, name: str, manifest: SealedManifest) -> Path:
    """The file that the manifest was written with, at its place or, after an interrupted exchange, beside it."""
    stored = manifest.stored_files()[name]
    for file in (folder / name, folder / (name + NEW)):
        if stored.is_in(file):
            return file
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
    with suppress(SecateurError):  # without a readable manifest there is nothing to protect
        _put_in_place(folder, kind.read(folder))  # what an interrupted save left to do
    try:
        manifest = manifest_of({name: _staged(folder, name, each) for name, each in tensors.items()})
        raw = manifest.to_bytes()
    except BaseException:
        for name in tensors:
            with suppress(OSError):
                (folder / (name + NEW)).unlink(missing_ok=True)
        raise
    with saving(folder / kind.file_name):
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
    return StoredFile.of(file)


def _put_in_place(folder: Path, manifest: SealedManifest) -> None:
    files = manifest.stored_files()
    for name in manifest.beside_it:
        staged = folder / (name + NEW)
        if name not in files:
            (folder / name).unlink(missing_ok=True)
        elif files[name].is_in(staged):
            staged.replace(folder / name)
        staged.unlink(missing_ok=True)
