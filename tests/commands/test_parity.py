"""Every command is a function of the package under the same name, and both have the same defaults."""

import inspect
from typing import Any

import pytest
import typer.main

import secateur
from secateur.commands.app import app

COMMANDS = {
    name: command
    for name, command in typer.main.get_command(app).commands.items()  # type: ignore[attr-defined]
    if name not in ("init", "demo")
}


def plain(default: Any) -> Any:
    """An option that is not given is None, False or empty, whichever reads better there."""
    return (list(default) if isinstance(default, tuple | list) else default) or None


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_and_its_function_have_the_same_defaults(name: str) -> None:
    options = {option.name: option.default for option in COMMANDS[name].params}
    function = inspect.signature(getattr(secateur, name)).parameters
    shared = [each for each in function if each in options and function[each].default is not inspect.Parameter.empty]
    assert {each: plain(options[each]) for each in shared} == {each: plain(function[each].default) for each in shared}


def test_the_defaults_of_measuring_are_compared_at_all() -> None:
    options = {option.name for option in COMMANDS["measure"].params}
    shared = options & inspect.signature(secateur.measure).parameters.keys()
    assert {"runtimes", "batches", "threads", "max_seconds"} <= shared
