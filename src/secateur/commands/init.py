"""`secateur init`."""

from __future__ import annotations

import re
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from secateur.commands.one_sentence import errors_in_one_sentence


def init(
    file: Annotated[Path, typer.Argument(help="The Python file to write.", dir_okay=False)] = Path("task.py"),
    kind: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="What you have: image-folder, timm, torchvision, text-classification, language-model or detection.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Your model: timm:NAME, torchvision:NAME, or a folder that save_pretrained wrote."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Write a commented task file, which tells the other commands where your model and data come from.

    Example: secateur init my_task.py --for image-folder --model timm:resnet50
    """
    with errors_in_one_sentence(debug, "Stopped."):
        from secateur.base import UsageError, write_text
        from secateur.commands.task_writing import task_text

        if file.suffix != ".py":
            raise UsageError(f"{file} is no Python file; call it {file.with_suffix('.py')}.")
        if file.exists():
            raise UsageError(f"{file} exists already; choose another name, or delete it first.")
        text, prune = task_text(file, kind, model)
        if re.search(rf"^(import|from) {re.escape(file.stem)}\b", text, re.MULTILINE):
            raise UsageError(f"{file} would hide {file.stem}, which it imports; choose another name.")
        write_text(file, text)
        change = "The lines to change are marked" if "# CHANGE" in text else "Its functions are to return your own"
        print(
            f"{file} is written, and works as it is, on a small example. {change}. Next: "
            f"`secateur inspect {quote(str(file))}`, then `{prune}`."
        )
