"""Files that appear whole or not at all, and paths that are nearly right."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from secateur.base.errors import NotWritten, SecateurError
from secateur.base.files import did_you_mean_path, replace_file, write_text
from secateur.base.scratch import private_folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "channels-50").mkdir()
    (tmp_path / "channels-50.html").touch()
    return tmp_path


def test_a_missing_file_or_folder_is_told_with_its_neighbour_of_that_kind(runs: Path) -> None:
    assert did_you_mean_path(runs / "chanels-50", folder=True) == f"did you mean {runs / 'channels-50'}?"
    assert did_you_mean_path(runs / "chanels-50") == f"did you mean {runs / 'channels-50.html'}?"
    assert did_you_mean_path(runs / "zeros-90", "give a run.", folder=True) == "give a run."


def test_a_path_that_is_there_or_whose_folder_is_not_has_no_neighbour(runs: Path) -> None:
    assert did_you_mean_path(runs / "channels-50", "give a run.", folder=True) == "give a run."
    assert did_you_mean_path(runs / "channels" / "channels-50", folder=True) == "check the path."


def test_a_path_within_the_current_folder_stays_relative(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    assert did_you_mean_path(Path("chanels-50"), folder=True) == "did you mean channels-50?"


def test_a_file_is_replaced_only_when_its_successor_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "new" / "plan.json"
    write_text(file, "old")
    with suppress(KeyError), replace_file(file) as partial:
        partial.write_text("half of the new")
        raise KeyError
    assert [entry.name for entry in file.parent.iterdir()] == ["plan.json"]
    assert file.read_text() == "old"
    write_text(file, "new")
    assert file.read_text() == "new"


def test_a_disk_that_refuses_is_told_in_one_sentence_with_the_room_that_is_left(tmp_path: Path) -> None:
    (tmp_path / "plan.json").mkdir()  # so that nothing can be written there
    with pytest.raises(SecateurError, match=r"plan.json could not be written \(.*\); [0-9,]+ MB are free there\. Free"):
        write_text(tmp_path / "plan.json", "text")


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EROFS, "the file system is read-only"),
        (errno.EACCES, "the folder is read-only for this user"),
        (errno.ENOTDIR, "it is not a folder"),
    ],
)
def test_nobody_is_told_to_free_space_where_nothing_can_be_written(
    number: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*where: object) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(NotWritten, match=r"could not be written .*; choose a folder that you may write to") as caught:
        write_text(tmp_path / "plan.json", "text")
    assert "space" not in str(caught.value)
    assert caught.value.reason == reason


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("name", ["report.html", "report.html.partial"])
def test_nothing_is_written_through_a_link_that_somebody_left(link: object, name: str, tmp_path: Path) -> None:
    (tmp_path / "users_own").write_text("mine")
    (tmp_path / "evil").mkdir()
    link(tmp_path / "users_own", tmp_path / "evil" / name)  # type: ignore[operator]
    write_text(tmp_path / "evil" / "report.html", "page")
    assert (tmp_path / "users_own").read_text() == "mine"
    assert (tmp_path / "evil" / "report.html").read_text() == "page"
    assert not (tmp_path / "evil" / "report.html").is_symlink()


def test_what_is_being_written_nobody_else_may_enter(tmp_path: Path) -> None:
    with replace_file(tmp_path / "plan.json") as partial:
        assert partial.parent.parent == tmp_path
        assert partial.parent.stat().st_mode & 0o777 == 0o700
        partial.write_text("plan")
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_what_killed_programs_left_goes_and_what_living_ones_write_stays(tmp_path: Path) -> None:
    left, not_ours = tmp_path / ".secateur-abcd1234.partial", tmp_path / ".secateur-notes.partial"
    for folder in (left, not_ours):
        folder.mkdir()
        (folder / "half").touch()
    (tmp_path / ".secateur-link1234.partial").symlink_to(not_ours)
    with private_folder(tmp_path) as writing:
        write_text(tmp_path / "plan.json", "text")
        assert writing.is_dir()
        assert not left.exists()
    assert not writing.exists()
    assert (not_ours / "half").exists()
