"""Front doors: what a package offers to others, imported on first use.

`__init__.pyi` beside a package's `__init__.py` names each thing that others may import, and where it lives, once: type
checkers and editors read it there, and so does `front_door`. torch takes seconds to load, and `secateur --help` does
not need it; nor does a plan need the engine that made it.
"""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["front_door"]

_NAMED = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)


def front_door(package: str, init_file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The package's `__getattr__`, `__dir__` and `__all__`."""
    stub = Path(init_file).with_suffix(".pyi").read_text(encoding="utf-8")
    home = {name: module for module, name in _NAMED.findall(stub)}

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        vars(import_module(package))[name] = value
        return value

    return load, lambda: sorted(home), list(home)
