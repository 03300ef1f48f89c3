"""What a person sees while something takes long."""

from __future__ import annotations

import pytest

from secateur.base.progress import steps
from tests.support.terminal import seen_on_a_terminal


def test_steps_are_lines_without_a_terminal(capsys: pytest.CaptureFixture) -> None:
    with steps(2, "work") as begin:
        begin("one")
        begin("two")
    assert capsys.readouterr().err == "work: 1/2 one\nwork: 2/2 two\n"


def test_steps_are_a_bar_on_a_terminal() -> None:
    code = (
        "import time\n"
        "from secateur.base import steps\n"
        "with steps(2, 'work') as begin:\n"
        "    begin('one'); time.sleep(0.3); begin('two'); time.sleep(0.3)\n"
    )
    text = seen_on_a_terminal(code)
    assert "━" in text
    assert "50 % two" in text
