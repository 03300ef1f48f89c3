"""Files that appear whole or not at all, and paths that are nearly right."""

from __future__ import annotations

from pathlib import Path

import pytest

from secateur.base.errors import SecateurError
from secateur.base.files import PARTIAL, did_you_mean_path, write_text


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
    with pytest.raises(UnicodeEncodeError):  # half-way through the text
        write_text(file, "new" + chr(0xD800))
    assert [entry.name for entry in file.parent.iterdir()] == ["plan.json"]
    assert file.read_text() == "old"
    write_text(file, "new")
    assert file.read_text() == "new"


def test_a_disk_that_refuses_is_told_in_one_sentence_with_the_room_that_is_left(tmp_path: Path) -> None:
    (tmp_path / ("plan.json" + PARTIAL)).mkdir()  # so that nothing can be written there
    with pytest.raises(SecateurError, match=r"plan.json could not be written \(.*\); [0-9,]+ MB are free there\. Free"):
        write_text(tmp_path / "plan.json", "text")
