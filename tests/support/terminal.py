"""What a person sees on a terminal while a program runs."""

from __future__ import annotations

import os
import pty
import re
import select

from tests.support.forked import Program

__all__ = ["seen_on_a_terminal"]


def seen_on_a_terminal(code: str) -> str:
    """All that it wrote there in a run without an error, without the codes that move the cursor."""
    controller, terminal = pty.openpty()
    program = Program(code, terminal=os.ttyname(terminal), environment={"TERM": "xterm"})
    seen = b""
    while program.running or select.select([controller], [], [], 0)[0]:
        if select.select([controller], [], [], 0.05)[0]:
            seen += os.read(controller, 4096)
    os.close(terminal)
    os.close(controller)
    assert program.wait().returncode == 0, seen.decode()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode())
