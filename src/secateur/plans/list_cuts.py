"""Lists of modules that a plan shortens: which modules stay, and what tensors and modules are called before and after.

Where a module leaves an `nn.ModuleList`, those behind it move up, and so get other names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from secateur.base import Count, Must

_MOST_DIGITS = 10


def is_rising(kept: NDArray[np.int64]) -> bool:
    return not len(kept) or bool(kept[0] >= 0 and (np.diff(kept) > 0).all())


@dataclass(frozen=True, eq=False)
class ListCut:
    """Which modules of a list stay."""

    length: Count
    kept: Annotated[NDArray[np.int64], Must(is_rising, "is out of range or out of order")]

    def __post_init__(self) -> None:
        if not len(self.kept) or self.kept[-1] >= self.length:
            raise ValueError("no module is kept, or one that is not there")

    def then(self, later: ListCut) -> ListCut:
        return ListCut(self.length, self.kept[later.kept])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ListCut) and self.length == other.length and np.array_equal(self.kept, other.kept)


Lists = Mapping[str, ListCut]
"""By the path of the list."""


def name_before(lists: Lists, name: str) -> str:
    """What something was called before the cut."""
    path, number, rest = _place(lists, name)
    kept = lists[path].kept if path is not None else ()
    return f"{path}.{kept[number]}{rest}" if number < len(kept) else name


def name_after(lists: Lists, name: str) -> str | None:
    """What something is called after the cut; None where it goes."""
    path, number, rest = _place(lists, name)
    if path is None:
        return name
    place = np.flatnonzero(lists[path].kept == number)
    return f"{path}.{place[0]}{rest}" if len(place) else None


def _place(lists: Lists, name: str) -> tuple[str | None, int, str]:
    """The list that something is in, the number of its module there, and the rest of the name."""
    for path in lists:
        if name.startswith(f"{path}."):
            number, dot, rest = name.removeprefix(f"{path}.").partition(".")
            if number.isascii() and number.isdecimal() and len(number) < _MOST_DIGITS:
                return path, int(number), dot + rest
    return None, 0, ""
