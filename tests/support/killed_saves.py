"""Saves that are killed in the middle, at every operation on a file in turn."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["killed_while"]


def killed_while(save: Callable[[], object], folder: Path, step: int) -> bool:
    """Saves in a process that is killed before its so-manyth change to a file; False where it ended before that."""
    child = os.fork()
    if child == 0:
        left = step

        def kill_in_time(event: str, args: tuple[Any, ...]) -> None:
            nonlocal left
            if _changes_files(event, args) and str(folder) in str(args):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill_in_time)
        try:
            save()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _changes_files(event: str, args: tuple[Any, ...]) -> bool:
    writes = event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR)
    return bool(writes) or event in ("os.rename", "os.remove", "os.mkdir", "os.chmod")
