"""Files from a folder that anybody may have made: what is no file, or too long, is refused without waiting for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from secateur.base.errors import SecateurError
from secateur.base.regular import MOST_BYTES, open_regular, read_regular, require_within
from secateur.base.strict_json import load_record, read_json
from secateur.plans.plan import Plan


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


NOT_FILES: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "a socket": a_socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", NOT_FILES)
def test_what_is_no_regular_file_is_refused_at_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    NOT_FILES[kind](Path("it"))
    for read in (read_regular, read_json):
        with pytest.raises(OSError, match="it is not a regular file"):
            read(Path("it"))
    with pytest.raises(SecateurError, match=r"^it is not a readable plan \(it is not a regular file\); save it"):
        load_record(Plan, "it")


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regular = Path(__file__).stat()
    os.mkfifo(tmp_path / "it")
    monkeypatch.setattr(Path, "stat", lambda path: regular)
    with pytest.raises(OSError, match="it is not a regular file"):
        open_regular(tmp_path / "it")


def test_no_more_is_read_than_is_needed(tmp_path: Path) -> None:
    file = tmp_path / "it.json"
    with file.open("wb") as opened:
        opened.truncate(1 << 33)
    with pytest.raises(ValueError, match="it has more than 67,108,864 bytes, more than it needs"):
        read_json(file)
    assert MOST_BYTES == 67_108_864
    file.write_bytes(b"12345")
    assert read_regular(file, most=5) == b"12345"
    with pytest.raises(ValueError, match="more than 4 bytes"):
        read_regular(file, most=4)


def test_links_may_lead_anywhere_within_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "private.json").write_text("{}")
    (folder / "own.json").write_text("{}")
    (folder / "inside").symlink_to("own.json")
    (folder / "outside").symlink_to("../private.json")
    (tmp_path / "latest").symlink_to(folder)
    require_within(tmp_path / "latest", tmp_path / "latest" / "inside")
    require_within(folder, folder / "own.json")
    with pytest.raises(SecateurError, match=r"outside is a link to a file outside its folder; put the file itself"):
        require_within(folder, folder / "outside")
