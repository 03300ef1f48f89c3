"""A folder on two machines: what has changed in it here, to be made so there.

Folders of folders appear whole or not at all, and files that are replaced are never half written, so that a program
killed in between finds a run at its last state.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from secateur.base import replace_file

Seen = Mapping[str, tuple[int, int]]
"""By path below the folder: when each file was written, and its size."""

_PARTIAL = ".partial"


@dataclass(frozen=True)
class Changes:
    present: frozenset[str]
    """All files that are there now, by their paths below the folder."""
    files: Mapping[str, bytes]
    """The contents of those that are new."""


def look(folder: Path) -> Seen:
    return {
        file.relative_to(folder).as_posix(): (file.stat().st_mtime_ns, file.stat().st_size)
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.is_symlink() and not any(_is_partial(part) for part in file.parts)
    }


def changes(folder: Path, before: Seen) -> Changes:
    """Since it was looked at."""
    now = look(folder)
    new = {path: (folder / path).read_bytes() for path, seen in now.items() if before.get(path) != seen}
    return Changes(frozenset(now), new)


def make_so(folder: Path, told: Changes, last: str) -> None:
    """New folders first, then files, and the one called `last` at the end; what is gone goes after all that."""
    for inner in map(PurePosixPath, told.present):
        if inner.is_absolute() or ".." in inner.parts:
            raise ValueError(f"{inner} leads out of the folder")
    folder.mkdir(parents=True, exist_ok=True)
    for top in sorted({path.split("/")[0] for path in told.files if "/" in path}):
        _write_folder(folder / top, {p: data for p, data in told.files.items() if p.startswith(f"{top}/")})
    for path in sorted((path for path in told.files if "/" not in path), key=lambda path: path == last):
        with replace_file(folder / path) as partial:
            partial.write_bytes(told.files[path])
    _remove(folder, look(folder).keys() - told.present)


def _write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Beside its place, with the files that it has already, and then into it."""
    partial = folder.with_name(folder.name + _PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    if folder.is_dir():
        shutil.copytree(folder, partial)
    for path, data in files.items():
        file = partial.joinpath(*PurePosixPath(path).parts[1:])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _remove(folder: Path, gone: Iterable[str]) -> None:
    for path in gone:
        (folder / path).unlink(missing_ok=True)
    for inner in sorted((each for each in folder.rglob("*") if each.is_dir()), reverse=True):
        if not any(inner.iterdir()):
            inner.rmdir()


def _is_partial(name: str) -> bool:
    return name.endswith(_PARTIAL)
