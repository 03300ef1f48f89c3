"""The command line: thin, and quick to start."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from secateur.commands.command import Command, Commands
from secateur.commands.demo import demo
from secateur.commands.export import export
from secateur.commands.hardware import hardware
from secateur.commands.init import init
from secateur.commands.inspect import inspect
from secateur.commands.measure import measure
from secateur.commands.prune import prune
from secateur.commands.report import report
from secateur.commands.sensitivity import sensitivity
from secateur.commands.sweep import sweep

app = typer.Typer(
    cls=Commands,
    help="Prune PyTorch models and prove what each cut bought.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from secateur import __version__

        print(f"secateur {__version__}")
        raise typer.Exit


@app.callback()
def _secateur(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


for command in (init, inspect, prune, sweep, measure, export, report, sensitivity, hardware, demo):
    app.command(cls=Command)(command)


def main() -> None:
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: a name that cannot be printed ends no command
    app(prog_name="secateur")
