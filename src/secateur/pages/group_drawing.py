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
from html import escape

from secateur.base import LeftAlone
from secateur.plans import GroupCut

__all__ = ["draw_groups"]

LANE_PIXELS = 10
_HINT = "Point at a group, or go to it with the arrow keys, to see what it couples."
_NUMBERED = re.compile(r" \(\d+\)$")


@dataclass(frozen=True)
class _Node:
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
class _Line:
    """From one node to all that it feeds, in a lane of its own while it lasts."""

    source: int
    ends: tuple[int, ...]
    lane: int


def draw_groups(groups: Sequence[GroupCut], left_alone: Sequence[LeftAlone]) -> str:
    """HTML; `page` tells what is under the mouse or has the focus."""
    nodes = [_cut_node(group) for group in groups] + [_alone_node(item) for item in left_alone]
    fed = _fed_by(nodes)
    order = _forward_order(fed)
    row_of = {node: row for row, node in enumerate(order)}
    lines = _lanes([[row_of[end] for end in fed[node] if row_of[end] > row_of[node]] for node in order])
    lanes = 1 + max((line.lane for line in lines), default=-1)
    widest: dict[str, int] = {}
    for group in groups:  # a dozen heads beside thousands of channels would be too small to see
        widest[group.kind] = max(group.before, widest.get(group.kind, 1))
    rows = "".join(_row(nodes[node], widest, first=row == 0) for row, node in enumerate(order))
    indent = LANE_PIXELS * (lanes + 1)
    return (
        '<div class="scroll"><div class="groups">'
        f'<svg aria-hidden="true" width="{indent}" height="100%" viewBox="0 0 {lanes + 1} {max(len(nodes), 1)}" '
        f'preserveAspectRatio="none">{"".join(_path(line, lanes) for line in lines)}</svg>'
        f'<ol style="padding-left:{indent}px" aria-label="Groups in the order of the data flow">{rows}</ol></div></div>'
        f'<p class="about" aria-live="polite">{_HINT}</p>'
    )


def _cut_node(group: GroupCut) -> _Node:
    about = (
        f"{group.name}: {group.before:,} → {group.after:,} {group.kind}. Couples {', '.join(group.layers)}. "
        f"Saves {group.parameters:,} parameters and {group.macs:,} MACs on its own."
    )
    return _Node(group.name, frozenset(group.layers), about, group)


def _alone_node(item: LeftAlone) -> _Node:
    return _Node(item.name, frozenset(), f"{item.name}: left alone, because {item.reason}.", None)


def _fed_by(nodes: Sequence[_Node]) -> list[list[int]]:
    """For each node those that its channels feed: whose own first layer reads them."""
    owners: dict[str, list[int]] = {}
    for i, node in enumerate(nodes):
        owners.setdefault(node.layer, []).append(i)
    # Groups of the same layer, such as the parts of one projection, do not feed one another.
    return [sorted(i for layer in node.feeds if layer != node.layer for i in owners.get(layer, ())) for node in nodes]


def _forward_order(fed: Sequence[Sequence[int]]) -> list[int]:
    """Every node after those that feed it, otherwise as they came."""
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


def _lanes(fed: Sequence[Sequence[int]]) -> list[_Line]:
    """Each line takes the first lane, counted from the bars, that is free from its source to its last end."""
    busy_until: list[int] = []
    lines = []
    for source, ends in enumerate(fed):
        if ends:
            lane = next((n for n, last in enumerate(busy_until) if last <= source), len(busy_until))
            busy_until[lane : lane + 1] = [max(ends)]
            lines.append(_Line(source, tuple(ends), lane))
    return lines


def _path(line: _Line, lanes: int) -> str:
    """Leaves below the middle of a row and enters above it, so that lines that meet in a row stay apart."""
    x, right = lanes - line.lane - 0.5, lanes + 0.5
    steps = [f"M{right} {line.source + 0.6}H{x}V{max(line.ends) + 0.4}"]
    steps += [f"M{x} {end + 0.4}H{right}" for end in line.ends]
    return f'<path d="{"".join(steps)}"/>'


def _row(node: _Node, widest: Mapping[str, int], first: bool) -> str:
    cut = node.cut
    width = 100 * cut.before / widest[cut.kind] if cut else 12
    inner = f'<span class="after" style="width:{100 * cut.after / cut.before:.2f}%"></span>' if cut else ""
    count = f"{cut.before:,} → {cut.after:,}" if cut else "left alone"
    kind = "cut" if cut else "alone"
    return (
        f'<li class="{kind}" tabindex="{0 if first else -1}" aria-label="{escape(node.about)}">'
        f'<span class="name">{escape(node.name)}</span>'
        f'<span class="bar"><span class="before" style="width:{width:.2f}%">{inner}</span></span>'
        f'<span class="count">{count}</span></li>'
    )
