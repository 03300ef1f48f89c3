"""`Command`: what every command of the line shares: its help, and errors in the words that a person typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from typing import Any, TypeVar

from typer.core import TyperCommand, TyperGroup

Shown = TypeVar("Shown", bound=TyperCommand | TyperGroup)

_OTHERWISE_CALLED = {"amount": "--sparsity", "run_dir": "--out"}
"""Arguments of `secateur.prune` whose option has another name."""
_VALUE = r"""(?:"[^"]*"(?: or "[^"]*")?|'[^']*'|\[[^]]*\]|[^\s,;)]*[^\s,;).])"""
_VERB = "(?= (?:is|belongs|cannot|names|needs|sets|weighs) )"

_options: ContextVar[Mapping[str, str] | None] = ContextVar("_options", default=None)
"""Of the command that runs: how each of its parameters is written on the line."""


class Commands(TyperGroup):
    """All of them together."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(Commands, _without_types(self, ctx)).format_help(ctx, formatter)


class Command(TyperCommand):
    def invoke(self, ctx: Any) -> Any:
        written = {str(each.name): max(each.opts, key=len) for each in self.params if each.param_type_name == "option"}
        others = {name: option for name, option in _OTHERWISE_CALLED.items() if option in written.values()}
        with _speaking(written | others):
            return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(Command, _without_types(self, ctx)).format_help(ctx, formatter)


def as_typed(sentence: str) -> str:
    """A sentence of the library in the words of the command that runs: `schedule="iterative"` as
    `--schedule iterative`."""
    options = _options.get()
    if not options:
        return sentence
    names = "|".join(sorted(options, key=len, reverse=True))
    no_words = "|".join([*(name for name in options if "_" in name), "(?!)"])
    with_values = rf"(?<![\w.(-])({names})=({_VALUE})"
    alone = rf"(?:(?<=^)|(?<=; )|(?<=, and ))({names}){_VERB}|(?<![\w./-])({no_words})(?![\w(=/]|\.\w)"
    sentence = re.sub(with_values, lambda found: _on_the_line(options[found[1]], found[2]), sentence)
    sentence = re.sub(f"`({names})`", lambda found: options[found[1]], sentence)
    return re.sub(alone, lambda found: options[found[1] or found[2]], sentence)


def _on_the_line(option: str, value: str) -> str:
    if value in ("True", "…", "[…]"):
        return option
    if value.startswith("["):
        return " ".join(f"{option} {shlex.quote(each.strip(chr(39)))}" for each in value[1:-1].split(", "))
    return f"{option} {re.sub(chr(39) + '|' + chr(34), '', value)}"


@contextmanager
def _speaking(options: Mapping[str, str]) -> Iterator[None]:
    before = _options.set(options)
    try:
        yield
    finally:
        _options.reset(before)


def _without_types(command: Shown, ctx: Any) -> Shown:
    """Help without the types and ranges of the values: the descriptions tell them, and need the room."""
    shown = copy(command)
    shown.params = [_without_type(each) for each in command.get_params(ctx)]
    shown.add_help_option = False  # it is among them
    return shown


def _without_type(parameter: Any) -> Any:
    if parameter.param_type_name != "option":
        return parameter
    shown = copy(parameter)
    shown.metavar, shown.min, shown.max = "", None, None
    return shown
