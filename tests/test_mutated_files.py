"""A moment of what `python scripts/fuzz.py` does for as long as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.fuzzing import KINDS, Wrong, attack, keep_failure, watched

CASES = {
    "plan": 10,
    "masks": 25,
    "cut checkpoint": 8,
    "settings": 1,
}
"""Those that take long have mutation tests of their own, beside the room that reads them."""


@pytest.mark.parametrize("kind", CASES)
def test_a_mutated_file_is_refused_or_works(kind: str, tmp_path: Path) -> None:
    refused = 0
    for case in range(CASES[kind]):
        folder = tmp_path / str(case)
        folder.mkdir()
        refused += bool(attack(kind, f"suite-{case}", folder))
    assert refused, "most are"


def test_a_checkpoint_with_a_forged_size_does_not_load(tmp_path: Path) -> None:
    """The number of heads, which no tensor shows."""
    refusal = attack("checkpoint of heads", "41-1772", tmp_path)
    assert "The stored plan makes no model that runs" in refusal


def test_the_same_seed_makes_the_same_file(tmp_path: Path) -> None:
    first, again = (keep_failure("masks", "7", tmp_path / name) for name in ("first", "again"))
    mutated = (first / "masks.safetensors").read_bytes()
    assert mutated == (again / "masks.safetensors").read_bytes()
    assert mutated != KINDS["masks"].files()["masks.safetensors"]


def test_what_is_written_or_started_elsewhere_is_noticed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    with watched(inside):
        (inside / "file").write_text("mine")
        for write in (outside.mkdir, outside.touch, (inside / "link").touch, lambda: (inside / "file").rename(outside)):
            with pytest.raises(Wrong, match="it wrote to"):
                write()
