"""`secateur init`."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from secateur.commands.one_sentence import errors_in_one_sentence


def init(
    file: Annotated[Path, typer.Argument(help="The Python file to write.", dir_okay=False)] = Path("task.py"),
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Write a commented task file, which tells the other commands where your model and data come from.

    Example: secateur init my_task.py
    """
    with errors_in_one_sentence(debug, "Stopped."):
        from importlib.resources import files

        from secateur.base import UsageError, write_text

        if file.suffix != ".py":
            raise UsageError(f"{file} is no Python file; call it {file.with_suffix('.py')}.")
        if file.exists():
            raise UsageError(f"{file} exists already; choose another name, or delete it first.")
        template = (files("secateur.commands") / "task_template.txt").read_text(encoding="utf-8")
        typed = quote(str(file))
        write_text(file, template.replace("FILE", typed))
        print(
            f"{file} is written, and works as it is: a small network and the images that come with secateur. Put your "
            f"own model and data into its functions, then see `secateur inspect {typed}`."
        )
