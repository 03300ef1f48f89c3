"""Exports of one file or several that appear together, when they are whole and checked, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from secateur.base import UsageError, flush_folder, private_folder, saving


@contextmanager
def placed_when_done(path: Path) -> Iterator[Path]:
    """Yields a path of the same name in a folder beside it; on success whatever was written there takes its place.

    Files name each other, so they are written under their own names, not under partial ones.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give the file to write.")
    with ExitStack() as until_done:
        with saving(path):
            folder = until_done.enter_context(private_folder(path.parent))
        yield folder / path.name
        with saving(path):
            flush_folder(folder)
            _move(folder, path)


def _move(folder: Path, path: Path) -> None:
    companions = [file for file in folder.iterdir() if file.name != path.name]
    if companions:
        # A program killed in between leaves no model, rather than an old graph with new weights.
        path.unlink(missing_ok=True)
    for file in companions:
        file.replace(path.with_name(file.name))
    (folder / path.name).replace(path)
