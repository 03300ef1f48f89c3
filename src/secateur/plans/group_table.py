"""The table of groups that a plan and an anatomy print: as wide as the terminal, and no wider."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from secateur.base import aligned, count_text, screen_width, short_count, short_name, some_of

_READABLE = 16
"""Letters that still tell a layer's name."""
_MOST_LAYERS = 3


class GroupRow(NamedTuple):
    name: str
    units: str
    kind: str
    layers: Sequence[str]
    parameters: int
    macs: int


def group_lines(rows: Sequence[GroupRow], sign: str = "") -> list[str]:
    """A head, and a line for each group; `sign` stands before its parameters and MACs. Where there is little room,
    numbers are rounded first, and then names lose their middle."""
    if not rows:
        return []
    numbers = [("parameters", "MACs"), *((f"{sign}{row.parameters:,}", f"{sign}{row.macs:,}") for row in rows)]
    longest = max(len(row.name) for row in rows)
    listed = max(len(some_of(row.layers, _MOST_LAYERS)) for row in rows)
    if (room := _room(rows, numbers)) < min(longest + listed, 4 * _READABLE):
        numbers[1:] = [(f"{sign}{short_count(row.parameters)}", f"{sign}{short_count(row.macs)}") for row in rows]
        room = _room(rows, numbers)
    for_name = min(longest, max(room - listed, 3 * room // 5, _READABLE))
    for_layers = room - for_name
    cells = [("group", "units", "", "layers it couples" if for_layers > _READABLE else "layers", *numbers[0])]
    for row, both in zip(rows, numbers[1:], strict=True):
        names = short_name(row.name, for_name), _names_within(row.layers, for_layers)
        cells.append((names[0], row.units, row.kind, names[1], *both))
    return aligned(cells, right=(1, 4, 5))


def _room(rows: Sequence[GroupRow], numbers: Sequence[tuple[str, str]]) -> int:
    """What the other columns, two letters apart, leave for the names."""
    columns = [["units", *(row.units for row in rows)], [row.kind for row in rows], *zip(*numbers, strict=True)]
    return screen_width() - 10 - sum(max(map(len, column)) for column in columns)


def _names_within(layers: Sequence[str], width: int) -> str:
    """As many as can still be read; if not even one can, their number."""
    if len(names := some_of(layers, _MOST_LAYERS)) <= width:
        return names
    for most in range(min(_MOST_LAYERS, len(layers)), 0, -1):
        ends = _without_shared_beginning(layers[:most]) if most > 1 else layers[:1]
        told = some_of([*ends, *layers[most:]], most)
        each = (width - len(told) + sum(map(len, ends))) // most
        if len(told) > width and each >= _READABLE:
            told = some_of([*(short_name(name, each) for name in ends), *layers[most:]], most)
        if len(told) <= width:
            return told
    return count_text(len(layers), "layer")


def _without_shared_beginning(names: Sequence[str]) -> list[str]:
    """The group is called like the first of them, so it is told already where they are."""
    beginnings = zip(*(name.split(".")[:-1] for name in names), strict=False)
    shared = len(list(takewhile(lambda parts: len(set(parts)) == 1, beginnings)))
    return [("…" if shared else "") + ".".join(name.split(".")[shared:]) for name in names]
