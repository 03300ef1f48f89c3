"""The rooms of the house: each imports only from those above it, and enters another by its front door.

The order is that of a model's way through the program. Imports inside functions and for type checkers count as well.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import secateur
from secateur.base.doors import front_door

PACKAGE = Path(secateur.__file__).parent
ROOMS = (
    "base examples capture couple plans surgery bench weights channels refit checkpoint loop sparse formats studies "
    "pages integrations commands"
).split()
UPWARDS = {
    ("bench.runtimes", "sparse"): "the engine is one of the runtimes, and is itself made by timing layers",
}
"""The imports that lead up, each inside a function, and why they stay."""


def modules() -> dict[str, Path]:
    files = {".".join(file.relative_to(PACKAGE).with_suffix("").parts): file for file in PACKAGE.rglob("*.py")}
    return {name: file for name, file in files.items() if name != "__init__"}


@cache
def statements(file: Path) -> list[ast.Import | ast.ImportFrom]:
    """Those with which a file imports, wherever in it."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(file: Path) -> Iterator[str]:
    """The modules of secateur that a file imports, without the name of the package."""
    for node in statements(file):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name.removeprefix("secateur.") for name in names if name.startswith("secateur."))


def test_every_module_is_in_a_room_and_no_room_bears_the_name_of_something_public() -> None:
    assert {name.split(".")[0] for name in modules()} == set(ROOMS)
    assert not set(ROOMS) & set(secateur.__all__)


def test_rooms_import_only_from_those_above() -> None:
    led_up = set()
    for name, file in modules().items():
        for other in imports(file):
            own, room = name.split(".")[0], other.split(".")[0]
            if ROOMS.index(room) > ROOMS.index(own):
                led_up.add((name, room))
    assert led_up == set(UPWARDS)


def test_another_room_is_entered_by_its_front_door() -> None:
    through_walls = [
        f"{name} imports {other}"
        for name, file in modules().items()
        for other in imports(file)
        if "." in other and other.split(".")[0] != name.split(".")[0] and other != "base.doors"
    ]
    assert not through_walls


def test_only_channels_enters_couple() -> None:
    inside = {name.split(".")[0] for name, file in modules().items() if "couple" in map(_room, imports(file))}
    assert inside <= {"couple", "channels"}


def test_no_two_modules_share_a_name() -> None:
    """But for commands, which are called like what they run."""
    names = [name.split(".")[-1] for name in modules() if not name.endswith("__init__")]
    assert [name for name, count in Counter(names).items() if count > 1] == []


@pytest.mark.parametrize("room", ["", *ROOMS[:-1]])
def test_everything_a_front_door_names_is_there_and_in_use(room: str) -> None:
    """Names of a room that no other imports are its own business."""
    package = f"secateur.{room}".rstrip(".")
    home = PACKAGE / room / "__init__.py"
    load, _, names = front_door(package, str(home))
    for name in names:
        assert load(name) is not None
        assert not (home.parent / f"{name}.py").exists(), f"the module {name} would hide what is called like it"
    if room not in ("", "examples"):
        assert set(names) == _entered_by_others(room)


def test_a_plan_does_not_load_what_made_it() -> None:
    loaded, _ = _loaded_one_after_the_other()
    assert "secateur.surgery.cutting" in loaded
    assert not [name for name in loaded if name.startswith(("secateur.couple", "secateur.channels", "secateur.bench"))]


def test_planning_does_not_load_the_study_of_the_machine() -> None:
    _, loaded = _loaded_one_after_the_other()
    assert "secateur.bench.counts" in loaded, "what it may have measured is asked for all the same"
    assert not [name for name in loaded if name.startswith("secateur.studies")]


@cache
def _loaded_one_after_the_other() -> list[list[str]]:
    """The modules that a new process has loaded for what handles plans, and then for making one."""
    layers = "torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))"
    code = (
        "import sys, secateur\n"
        "secateur.Plan, secateur.Masks, secateur.verify, secateur.apply, secateur.load\n"
        "print(*sys.modules)\n"
        "import torch\n"
        f"secateur.plan_channels({layers}, torch.ones(1, 8), 0.5)\n"
        "print(*sys.modules)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return [line.split() for line in told.splitlines()]


def _room(module: str) -> str:
    return module.split(".")[0]


def _entered_by_others(room: str) -> set[str]:
    """What other rooms, and the top of the package, import from it."""
    found = set()
    for name, file in modules().items():
        if _room(name) != room:
            for node in statements(file):
                if isinstance(node, ast.ImportFrom) and node.module == f"secateur.{room}":
                    found |= {alias.name for alias in node.names}
    return found
