"""The table of groups fits the terminal, and names stay apart in it."""

import pytest

from secateur.plans.group_table import GroupRow, group_lines
from secateur.plans.outcome import Outcome
from secateur.plans.plan import GroupCut, Plan

LAYERS = [f"bert.encoder.layer.{i}.attention.self.query" for i in range(12)]
PARTS = ("query", "key", "value", "output")


def rows() -> list[GroupRow]:
    heads = [
        GroupRow(name, "12 → 6", "heads", [name.replace("query", end) for end in PARTS], 1_181_184, 5_637_144_576)
        for name in LAYERS
    ]
    stream = [f"bert.embeddings.{kind}_embeddings" for kind in ("word", "position", "token_type", "further")]
    return [GroupRow(stream[0], "768 → 384", "channels", stream, 54_000_000, 11_000_000_000), *heads]


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_the_table_of_a_large_model_is_as_wide_as_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = group_lines(rows(), "−")
    assert max(map(len, lines)) <= width
    assert len(lines) == 14
    names = [line.split()[0] for line in lines[1:]]
    assert len(set(names)) == 13
    assert all(name.endswith("query") for name in names[1:])


def test_names_lose_what_repeats_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    line = group_lines(rows()[1:])[1]
    assert line.split() == [LAYERS[0], "12", "→", "6", "heads", "…query,", "…key,", "…value", "+1", "more",
                            "1,181,184", "5,637,144,576"]  # fmt: skip
    monkeypatch.setenv("COLUMNS", "80")
    assert group_lines(rows()[1:])[1].split()[-6:] == ["4", "layers", "1.18", "M", "5.64", "G"]


def test_a_wide_terminal_shows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "260")
    assert f"{', '.join(rows()[1].layers[:3])} +1 more" in group_lines(rows())[2]


def test_no_line_of_a_plan_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    groups = tuple(
        GroupCut(row.name, tuple(row.layers), row.kind, 768, 384, row.parameters, row.macs) for row in rows()
    )
    outcome = Outcome("latency=0.5", "latency", 0.01, 0.005, 0.005, 0.005, measured_in="eager, float32, one thread")
    plan = Plan({}, {}, groups, (), (109_000_000, 54_000_000), (11_000_000_000, 5_000_000_000), outcome=outcome)
    lines = str(plan).splitlines()
    assert max(map(len, lines)) <= 80
    assert "measured 5 ms, 0.500 × dense (10 ms)" in " ".join(line.strip() for line in lines)
