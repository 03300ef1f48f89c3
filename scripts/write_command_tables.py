"""Writes the options of every command, from the commands themselves, into docs/command-line.md.

    python scripts/write_command_tables.py

`tests/test_docs.py` fails when the page is behind the commands.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from secateur.commands.app import app

PAGE = Path(__file__).parent.parent / "docs" / "command-line.md"
PLACE = re.compile(r"(<!-- options of (\w+) -->\n)(?:\n(?:\|.*\n)+)?")
"""The marker of a command, and the table that stands below it already."""


def with_tables(text: str) -> str:
    """The page with the options as they are now."""
    commands = {command.callback.__name__: command.callback for command in app.registered_commands if command.callback}
    found = [name for _, name in PLACE.findall(text)]
    if sorted(found) != sorted(commands):
        raise ValueError(f"The page has places for {', '.join(found)}, but the commands are {', '.join(commands)}.")
    return PLACE.sub(lambda place: f"{place[1]}\n{_table(commands[place[2]])}", text)


def _table(command: Callable[..., Any]) -> str:
    hints = get_type_hints(command, include_extras=True)
    lines = ["| option | meaning | default |", "|---|---|---|"]
    for name, parameter in inspect.signature(command).parameters.items():
        described = _description(hints[name])
        if described is not None:
            names = _names(name, described, is_switch=get_args(hints[name])[0] is bool)
            lines.append(f"| {names} | {_escaped(described.help or '')} | {_default(parameter)} |")
    return "\n".join(lines) + "\n"


def _description(hint: Any) -> typer.models.ParameterInfo | None:
    """What typer was told of a parameter; the context, of which it was told nothing, is no option."""
    if get_origin(hint) is not Annotated:
        return None
    return next(part for part in get_args(hint) if isinstance(part, typer.models.ParameterInfo))


def _names(name: str, described: typer.models.ParameterInfo, is_switch: bool) -> str:
    if isinstance(described, typer.models.ArgumentInfo):
        return f"`{name.upper()}`"
    # Within Annotated, the first name stands where a default would otherwise be.
    given = [*([described.default] if isinstance(described.default, str) else []), *(described.param_decls or [])]
    own = name.replace("_", "-")
    written = given or ([f"--{own}", f"--no-{own}"] if is_switch else [f"--{own}"])
    return ", ".join(f"`{each}`" for each in written)


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return "required"
    if parameter.default is None or isinstance(parameter.default, bool):
        return "yes" if parameter.default else "–"
    values = parameter.default if isinstance(parameter.default, list) else [parameter.default]
    return ", ".join(f"`{value:g}`" if isinstance(value, float) else f"`{value}`" for value in values)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("[", "\\[")


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
