"""`secateur inspect`."""

from __future__ import annotations

from typing import Annotated

import typer

from secateur.commands.one_sentence import errors_in_one_sentence, users_errors_in_one_sentence


def inspect(
    task: Annotated[str, typer.Argument(help="A Python file, or package.module, with model() and eval_data().")],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Show which channels of a model can be cut, with which layers, and what cannot be cut and why.

    Example: secateur inspect task.py
    """
    with errors_in_one_sentence(debug, "Stopped."):
        from secateur.channels import inspect as inspect_model
        from secateur.commands.task_file import load_task

        source = load_task(task)
        with users_errors_in_one_sentence():
            anatomy = inspect_model(source.build_model(), source.example_inputs())
        if as_json:
            import json
            from dataclasses import asdict

            print(json.dumps(asdict(anatomy), indent=2))
        else:
            print(anatomy)
