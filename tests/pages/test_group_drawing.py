"""The drawing of coupled groups: their order, their widths, and the lines between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur.base.names import LeftAlone
from secateur.pages.group_drawing import draw_groups as plain_drawing
from secateur.pages.page import render
from secateur.plans.plan import GroupCut


def group(name: str, *feeds: str, before: int = 8, after: int = 4) -> GroupCut:
    return GroupCut(name, (name, *feeds), "channels", before, after, 10, 100)


def draw_groups(groups: Sequence[GroupCut], left_alone: Sequence[LeftAlone]) -> str:
    return render("groups.html.j2", drawing=plain_drawing(groups, left_alone))


def rows_of(drawing: str) -> list[str]:
    return re.findall(r'<span class="name">(.*?)</span>', drawing)


def lines_of(drawing: str) -> list[tuple[str, float, int, set[int]]]:
    """Lane, row of the source, row of the last end and of all ends."""
    found = []
    for path in re.findall(r'<path d="(.*?)"', drawing):
        _, start, lane, last = re.match(r"M(\S+) (\S+?)H(\S+?)V([\d.]+)", path).groups()  # type: ignore[union-attr]
        ends = {int(float(end)) for end in re.findall(r"M\S+? (\S+?)H", path)[1:]}
        found.append((lane, int(float(start)), int(float(last)), ends))
    return found


def test_groups_come_after_those_that_feed_them() -> None:
    groups = [group("late"), group("stem", "late", "middle"), group("middle", "late", "head")]
    drawing = draw_groups(groups, [LeftAlone("head", "it is <the> output")])
    assert rows_of(drawing) == ["stem", "middle", "late", "head"]
    assert {(start, *sorted(ends)) for _, start, _, ends in lines_of(drawing)} == {(0, 1, 2), (1, 2, 3)}
    assert "left alone, because it is &lt;the&gt; output." in drawing


def test_parts_of_one_layer_do_not_feed_one_another() -> None:
    drawing = draw_groups([group("qkv", "out"), group("qkv (2)", "out"), group("out")], [])
    fed = {(start, end) for _, start, _, ends in lines_of(drawing) for end in ends}
    assert fed == {(0, 2), (1, 2)}


def test_the_bars_are_as_wide_as_the_channels() -> None:
    heads = replace(group("c", before=4, after=1), kind="heads")
    drawing = draw_groups([group("a", before=64, after=16), group("b", before=32, after=31), heads], [])
    widths = [float(width) for width in re.findall(r'style="width:([\d.]+)%"', drawing)]
    assert widths == pytest.approx([100, 25, 50, 96.88, 100, 25])


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=40))
def test_lines_of_one_lane_never_run_over_one_another(edges: list[tuple[int, int]]) -> None:
    """Also where the data flow has loops."""
    drawing = draw_groups([group(f"g{i}", *(f"g{b}" for a, b in edges if a == i)) for i in range(12)], [])
    order = [int(name[1:]) for name in rows_of(drawing)]
    assert sorted(order) == list(range(12))
    lines = lines_of(drawing)
    drawn = {(order[start], order[end]) for _, start, _, ends in lines for end in ends}
    place = {i: row for row, i in enumerate(order)}
    assert drawn == {(a, b) for a, b in edges if place[a] < place[b]}
    if all(a < b for a, b in edges):
        assert order == list(range(12)), "what is in order stays in order"
    for lane in {line[0] for line in lines}:
        spans = sorted((start, last) for own, start, last, _ in lines if own == lane)
        assert all(last <= start for (_, last), (start, _) in pairwise(spans))
