"""What the library says in Python is said on the command line in options, and the help has room."""

import pytest
import typer.main
from typer.testing import CliRunner

from secateur.commands.app import app
from secateur.commands.command import Command, as_typed


def said_in(command: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """As the command prints it while it runs."""
    found = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    heard: list[str] = []
    monkeypatch.setattr(Command.__mro__[1], "invoke", lambda *_: heard.append(as_typed(sentence)))
    found.invoke(None)
    return heard[0]


@pytest.mark.parametrize(
    ("python", "typed"),
    [
        ('or cut in smaller steps with schedule="iterative".', "or cut in smaller steps with --schedule iterative."),
        (
            'floor belongs to scope="global" and to targets; scope="layer" cannot use it, so leave it out.',
            "--floor belongs to --scope global and to targets; --scope layer cannot use it, so leave it out.",
        ),
        (
            "finetune='15%' is a share; give original_epochs, or a number of epochs.",
            "--finetune 15% is a share; give --original-epochs, or a number of epochs.",
        ),
        ('use schedule="one-shot" or "iterative".', "use --schedule one-shot or iterative."),
        ("leave them dense with keep=['conv1', 'a b'].", "leave them dense with --keep conv1 --keep 'a b'."),
        ("use train=0 and finetune=0.", "use --train 0 and --finetune 0."),
        ("with keep=…, or let multiple_of round the counts.", "with --keep, or let --multiple-of round the counts."),
        ("lr is 0.0; give a number above 0.", "--lr is 0.0; give a number above 0."),
        ("by default; finetune sets another number.", "by default; --finetune sets another number."),
        ("load them, or save with dense=True.", "load them, or save with --dense."),
        ("choose another run_dir.", "choose another --out."),
        (
            "Ask for that, lower `floor`, or see `secateur inspect`.",
            "Ask for that, lower --floor, or see `secateur inspect`.",
        ),
        (
            "2:4 prunes exactly 0.5, not 0.9; leave `amount` out.",
            "2:4 prunes exactly 0.5, not 0.9; leave --sparsity out.",
        ),
        ("There is no file runs/multiple_of.py; check it.", "There is no file runs/multiple_of.py; check it."),
        ("the target latency=0.5 is out of reach, f(score=3).", "the target latency=0.5 is out of reach, f(score=3)."),
    ],
)
def test_advice_is_given_in_options(python: str, typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said_in("prune", python, monkeypatch) == typed
    assert as_typed(python) == python, "in Python"


def test_another_command_has_other_options(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said_in("sensitivity", 'finetune="15%" and scope="layer"', monkeypatch) == '--finetune 15% and scope="layer"'
    assert said_in("init", "debug is a word, and amount is one", monkeypatch) == "--debug is a word, and amount is one"


@pytest.mark.parametrize("columns", [80, 120])
def test_descriptions_have_most_of_the_screen(columns: int) -> None:
    text = CliRunner().invoke(app, ["prune", "--help"], env={"COLUMNS": str(columns)}).stdout
    rows = [line for line in text.splitlines() if line.startswith("│ --")]
    assert len(rows) > 30
    starts = [len(row) - len(row[1:].lstrip(" ").split("  ", 1)[1].lstrip(" ")) for row in rows]
    assert max(starts) <= 34, "the longest option, and a gap"
    assert "prune [OPTIONS] {task}" in text
    assert "x>=" not in text


def test_a_paragraph_of_help_is_one_line_of_the_source() -> None:
    """The help keeps the line breaks of a docstring, and then breaks the lines once more to the width of the screen."""
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        for paragraph in command.help.split("\n\n"):
            assert "\n" not in paragraph.strip(), name
