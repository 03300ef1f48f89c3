"""The command line: thin, and quick to start."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from secateur.commands.demo import demo
from secateur.commands.export import export
from secateur.commands.hardware import hardware
from secateur.commands.init import init
from secateur.commands.inspect import inspect
from secateur.commands.measure import measure
from secateur.commands.prune import prune
from secateur.commands.report import report
from secateur.commands.sensitivity import sensitivity

__all__ = ["main"]

TRAINING = ("prune", "sensitivity", "demo")
"""Not those that only measure: what they time is to wait as it will where it is deployed."""
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""With any of them, the user has said how threads are to wait."""

app = typer.Typer(
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
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand in TRAINING:
        _let_waiting_threads_sleep()


def _let_waiting_threads_sleep() -> None:
    """Threads that spin while they wait keep a busy core from the thread that they wait for: training on two of them
    has taken 6 to 50 times as long beside other programs. Once torch is loaded, it is too late to say so."""
    if "torch" not in sys.modules and not os.environ.keys() & set(WAITING):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


for command in (init, inspect, prune, measure, export, report, sensitivity, hardware, demo):
    app.command()(command)


def main() -> None:
    app(prog_name="secateur")
