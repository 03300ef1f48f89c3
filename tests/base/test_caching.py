"""The cache folder, and what happens where it cannot be written."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from secateur.base.caching import cache_folder, write_cache
from secateur.base.errors import SecateurWarning


def test_a_read_only_folder_costs_nothing_but_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*where: object) -> str:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "mkdtemp", read_only)
    with pytest.warns(SecateurWarning) as told:
        write_cache(tmp_path / "layers.json", "{}")
    assert [str(warning.message) for warning in told] == [
        f"What was measured is not kept for the next time: {tmp_path} cannot be written, because the file system is "
        "read-only; set SECATEUR_CACHE to a folder that can."
    ]


def test_a_file_in_the_place_of_the_folder_costs_nothing_but_a_warning(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.warns(SecateurWarning, match="cache cannot be written, because it is not a folder; set"):
        write_cache(tmp_path / "cache" / "layers.json", "{}")


def test_a_user_without_a_home_has_a_cache_that_is_never_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers that run under a number that the system has no name for."""

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for variable in ("SECATEUR_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    assert not cache_folder().exists()
