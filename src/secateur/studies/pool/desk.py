"""What the workers of a pool speak to: a process on our machine, which needs no torch and so starts at once."""

from __future__ import annotations

from pathlib import Path

from secateur.studies.pool.folder_changes import Changes, changes, make_so


class Desk:
    """Takes news and files in, and gives them out. The file called `last` says that a folder is finished.

    News stay pickled here: what they are made of is imported by those who read them.
    """

    def __init__(self, root: str, last: str) -> None:
        self._root, self._last = Path(root), last
        self._news: list[tuple[str, bytes]] = []

    def tell(self, job: str, news: bytes) -> None:
        self._news.append((job, news))

    def take(self) -> list[tuple[str, bytes]]:
        taken, self._news = self._news, []
        return taken

    def read(self, file: str) -> bytes:
        return Path(file).read_bytes()

    def fetch(self, folder: str) -> Changes:
        return changes(self._root / folder, {})

    def keep(self, folder: str, told: Changes) -> None:
        if not (self._root / folder / self._last).exists():  # a worker that was taken for lost may come late
            make_so(self._root / folder, told, self._last)
