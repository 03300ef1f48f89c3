"""Front doors: what a package offers to others, imported on first use.

`__init__.pyi` beside a package's `__init__.py` names each thing that others may import, and where it lives, once: type
checkers and editors read it there, and so does `front_door`. torch takes seconds to load, and `secateur --help` does
not need it; nor does a plan need the engine that made it. For the same reason this module imports next to nothing.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as type checkers understand it; typing itself takes longer to load than everything else here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def front_door(package: str, init_file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The package's `__getattr__`, `__dir__` and `__all__`, from lines such as `from secateur.a.b import C as C`."""
    with open(f"{init_file}i", encoding="utf-8") as stub:  # noqa: PTH123
        lines = [line.split() for line in stub if line.startswith("from ")]
    home = {name: module for _, module, _, name, *_ in lines}

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        vars(import_module(package))[name] = value
        return value

    return load, lambda: sorted(home), list(home)
