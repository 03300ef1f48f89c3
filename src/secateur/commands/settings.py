"""Options from a TOML file, and back into one, so that a run repeats."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from secateur.base import SecateurError, UsageError, did_you_mean, did_you_mean_path, read_regular

SETTINGS_FILE = "settings.toml"
_MOST_BYTES = 1 << 20
_NOT_SETTINGS = ("settings", "as_json", "debug", "help")
"""They say how to print, not what to do."""
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f]")
"""No option needs them, no path with a NUL can be opened, and a terminal obeys them."""


def read_settings(file: Path) -> dict[str, Any]:
    try:
        settings = tomllib.loads(read_regular(file, _MOST_BYTES).decode())
        for name, value in settings.items():
            if any(_CONTROL.search(str(each)) for each in (name, *(value if isinstance(value, list) else [value]))):
                raise ValueError(f"{name} holds a control character")
    except FileNotFoundError:
        raise UsageError(f"There are no settings {file}; {did_you_mean_path(file)}") from None
    except (OSError, ValueError, RecursionError) as error:  # tomllib's own error is a ValueError
        raise UsageError(f"{file} is no TOML that can be read ({error}); fix it there.") from None
    return settings


def write_settings(context: typer.Context, file: Path) -> None:
    """All options of the running command that have a value, by the names they have on the command line."""
    values = {option: context.params.get(parameter) for option, parameter in _options(context).items()}
    _write(file, context.command_path, values)


def write_run_settings(context: typer.Context, file: Path, command: str, own: Mapping[str, Any]) -> None:
    """Those of another command that would make a run of the running one: what both know, and what is the run's own."""
    group = context.parent.command if context.parent else None
    other = typer.Context(group.commands[command], context.parent, command)  # type: ignore[union-attr]
    known = _options(other)
    shared = {option: context.params.get(name) for option, name in _options(context).items() if option in known}
    cuts = dict.fromkeys(("target", "channels", "sparsity", "pattern", "train"))
    _write(file, other.command_path, {**shared, **cuts, **own})


def _write(file: Path, command: str, values: Mapping[str, Any]) -> None:
    from secateur.base import write_text

    lines = [f"# `{command} --settings {quote(str(file))}` repeats this run; options beside it change it."]
    lines += [f"{option} = {_as_toml(value)}" for option, value in values.items() if value not in (None, [], ())]
    write_text(file, "\n".join(lines) + "\n")


def _take_from_file(context: typer.Context, file: Path | None) -> Path | None:
    """Gives the options that are not on the command line the values of the file."""
    if file is None or context.resilient_parsing:
        return file
    try:
        context.default_map = _by_parameter(context, read_settings(file), file)
    except SecateurError as error:
        raise typer.BadParameter(str(error)) from None
    return file


def came_from_settings(context: typer.Context, parameter: str) -> bool:
    """Whether a file, and not a person, gave the parameter its value."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "DEFAULT_MAP"


Settings = Annotated[
    Path | None,
    typer.Option(
        help="A TOML file with any of these options, such as the settings.toml of an earlier run.",
        dir_okay=False,
        is_eager=True,
        callback=_take_from_file,
        rich_help_panel="Measuring and output",
    ),
]
"""The option of a command that takes others from a file."""


def _by_parameter(context: typer.Context, settings: Mapping[str, Any], file: Path) -> dict[str, Any]:
    options = _options(context)
    found = {}
    for name, value in settings.items():
        option = name.replace("_", "-")
        if option not in options:
            hint = did_you_mean(option, options, f"choose among {', '.join(options)}.")
            raise UsageError(f"{file} sets {name!r}, which is no option of `{context.command_path}`; {hint}")
        if isinstance(value, dict) or (
            isinstance(value, list) and any(isinstance(item, dict | list) for item in value)
        ):
            raise UsageError(f"{name} in {file} is a table; give it a plain value.")
        found[options[option]] = value
    return found


def _options(context: typer.Context) -> dict[str, str]:
    """The names that a person writes, without dashes in front, and those of the function's parameters."""
    options = {}
    for parameter in context.command.params:
        if parameter.name is not None and parameter.name not in _NOT_SETTINGS:
            written = (
                max(parameter.opts, key=len).lstrip("-") if parameter.param_type_name == "option" else parameter.name
            )
            options[written] = parameter.name
    return options


def _as_toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_as_toml, value))}]"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False)
