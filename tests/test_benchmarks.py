"""Benchmarks run rarely, so what they import is looked at here: a name that has moved would show a year later."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("*.py")))
def test_a_benchmark_finds_what_it_imports(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])  # they import one another
    found = runpy.run_path(str(FOLDER / f"{name}.py"), run_name="looked at")
    assert any(thing for thing in found if not thing.startswith("__"))
