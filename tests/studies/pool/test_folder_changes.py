"""A folder that is brought from one machine to another, a change at a time."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur.studies.pool.folder_changes import Changes, changes, look, make_so

NAMES = st.sampled_from(["run.json", "secateur.json", "stop-0001/a", "stop-0001/b", "stop-0002/a", "stop-0002/in/c"])
STATES = st.lists(st.dictionaries(NAMES, st.binary(max_size=8), max_size=6), min_size=1, max_size=4)


@given(STATES)
def test_the_other_folder_is_the_same_after_every_change(
    tmp_path_factory: pytest.TempPathFactory, states: list[dict[str, bytes]]
) -> None:
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")
    seen = look(here)
    for turn, state in enumerate(states):
        _become(here, state, turn)
        make_so(there, changes(here, seen), last="secateur.json")
        seen = look(here)
        assert _contents(there) == state


def test_only_what_is_new_travels(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 1000)
    seen = look(tmp_path)
    (tmp_path / "small").write_bytes(b"y")
    assert changes(tmp_path, seen) == Changes(frozenset({"large", "small"}), {"small": b"y"})


def test_what_is_half_written_does_not_travel(tmp_path: Path) -> None:
    (tmp_path / "stop-0001.partial").mkdir()
    (tmp_path / "stop-0001.partial" / "model").touch()
    (tmp_path / ".secateur-abcdefgh.partial").mkdir()
    (tmp_path / ".secateur-abcdefgh.partial" / "run.json").touch()
    assert look(tmp_path) == {}


@pytest.mark.parametrize("path", ["../up", "/etc/passwd", "a/../../up"])
def test_nothing_is_written_outside_the_folder(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="leads out"):
        make_so(tmp_path / "folder", Changes(frozenset({path}), {path: b"x"}), last="")
    assert not (tmp_path / "up").exists()


def _become(folder: Path, state: dict[str, bytes], turn: int) -> None:
    for path in [*look(folder)]:
        if path not in state:
            (folder / path).unlink()
    for path, data in state.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_bytes() != data:
            file.write_bytes(data)


def _contents(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
