"""The model drawn as its coupled groups: a bar for each, as wide as it has channels, in the order of the data flow.

Every group is a row. A line leaves it downwards and enters the groups that its channels feed, as in the graph that
version control draws of its commits; so a chain and a residual network look like what they are, and 150 groups take
150 rows instead of one that nobody can read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from secateur.base import LeftAlone
from secateur.plans import GroupCut

LANE_PIXELS = 10
_NUMBERED = re.compile(r" \(\d+\)$")


@dataclass(frozen=True)
class Row:
    """A group, or a layer that was left alone."""

    name: str
    feeds: frozenset[str]
    """The layers that read or make its channels."""
    about: str
    cut: GroupCut | None

    @property
    def layer(self) -> str:
        """The first layer that makes the channels."""
        return _NUMBERED.sub("", self.name)


@dataclass(frozen=True)
class Drawing:
    """What `groups.html.j2` draws."""

    rows: tuple[Row, ...]
    paths: tuple[str, ...]
    """The lines from each row to those that it feeds, in the units of SVG: a row is 1 high and a lane 1 wide."""
    lanes: int
    widest: Mapping[str, int]
    """By kind: a dozen heads beside thousands of channels would be too small to see."""

    @property
    def indent(self) -> int:
        return LANE_PIXELS * (self.lanes + 1)


def draw_groups(groups: Sequence[GroupCut], left_alone: Sequence[LeftAlone]) -> Drawing:
    rows = [_cut_row(group) for group in groups] + [_alone_row(item) for item in left_alone]
    fed = _fed_by(rows)
    order = _forward_order(fed)
    place = {i: row for row, i in enumerate(order)}
    below = [[place[end] for end in fed[i] if place[end] > place[i]] for i in order]
    lane_of = _lanes(below)
    lanes = 1 + max(lane_of.values(), default=-1)
    paths = [_path(row, below[row], lanes - lane, lanes) for row, lane in lane_of.items()]
    widest: dict[str, int] = {}
    for group in groups:
        widest[group.kind] = max(group.before, widest.get(group.kind, 1))
    return Drawing(tuple(rows[i] for i in order), tuple(paths), lanes, widest)


def _cut_row(group: GroupCut) -> Row:
    about = (
        f"{group.name}: {group.before:,} → {group.after:,} {group.kind}. Couples {', '.join(group.layers)}. "
        f"Saves {group.parameters:,} parameters and {group.macs:,} MACs on its own."
    )
    return Row(group.name, frozenset(group.layers), about, group)


def _alone_row(item: LeftAlone) -> Row:
    return Row(item.name, frozenset(), f"{item.name}: left alone, because {item.reason}.", None)


def _fed_by(rows: Sequence[Row]) -> list[list[int]]:
    """For each row those that its channels feed: whose own first layer reads them."""
    owners: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        owners.setdefault(row.layer, []).append(i)
    # Groups of the same layer, such as the parts of one projection, do not feed one another.
    return [sorted(i for layer in row.feeds if layer != row.layer for i in owners.get(layer, ())) for row in rows]


def _forward_order(fed: Sequence[Sequence[int]]) -> list[int]:
    """Every row after those that feed it, otherwise as they came."""
    waiting_for = [0] * len(fed)
    for ends in fed:
        for end in ends:
            waiting_for[end] += 1
    order: dict[int, None] = {}
    ready = [i for i, count in enumerate(waiting_for) if not count]
    while len(order) < len(fed):
        # In a loop of the data flow nothing is ready; it has to begin somewhere.
        i = heappop(ready) if ready else next(i for i in range(len(fed)) if i not in order)
        if i not in order:
            order[i] = None
            for end in fed[i]:
                waiting_for[end] -= 1
                if not waiting_for[end]:
                    heappush(ready, end)
    return list(order)


def _lanes(fed: Sequence[Sequence[int]]) -> dict[int, int]:
    """By its row, the line from it takes the first lane, counted from the bars, that is free down to its last end."""
    busy_until: list[int] = []
    lanes = {}
    for row, ends in enumerate(fed):
        if ends:
            lanes[row] = next((n for n, last in enumerate(busy_until) if last <= row), len(busy_until))
            busy_until[lanes[row] : lanes[row] + 1] = [max(ends)]
    return lanes


def _path(row: int, ends: Sequence[int], lane: int, lanes: int) -> str:
    """Leaves below the middle of a row and enters above it, so that lines that meet in a row stay apart."""
    x, right = lane - 0.5, lanes + 0.5
    return f"M{right} {row + 0.6}H{x}V{max(ends) + 0.4}" + "".join(f"M{x} {end + 0.4}H{right}" for end in ends)
