"""The command line: thin, and quick to start, because each command imports what it needs when it runs."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from secateur.errors import SecateurError, SecateurWarning, UsageError

__all__ = ["main"]

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
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    data: Annotated[
        str | None,
        typer.Option(
            help='A folder with the four Fashion-MNIST IDX files, or "full" for the one that Debian\'s '
            "dataset-fashion-mnist installs; otherwise the subset in the package.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder for models and results.", file_okay=False)
    ] = Path("secateur-demo"),
    epochs: Annotated[float, typer.Option(help="Epochs to train the dense network for.", min=0.01)] = 10,
    seed: Annotated[int, typer.Option(help="For the weights and the order of the data.", min=0, max=2**32 - 1)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Train a small CNN, prune it in several ways, and compare accuracy, size and speed.

    Takes about three minutes on two cores. Interrupted, it goes on where it stopped when started again.

    Example: secateur demo --seed 1 --out demo-1
    """
    with _errors_in_one_sentence(debug, f"Stopped. `{_command_line()}` goes on from the last finished epoch."):
        from rich.console import Console

        from secateur.data.fashion_mnist import find_folder
        from secateur.demo import run_demo
        from secateur.report.console import print_demo

        outcome = run_demo(out, find_folder(data), epochs, seed)
        if as_json:
            import json

            print(json.dumps(outcome.to_json(), indent=2))
        else:
            print_demo(outcome, Console())
            print(f"\nThe accuracy curve is {out}/curve.html; models and numbers lie beside it.")


@contextmanager
def _errors_in_one_sentence(debug: bool, when_interrupted: str) -> Iterator[None]:
    """Exit code 2 for a call that cannot work, 1 for a failure, 130 for Ctrl-C; a traceback only with --debug."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _print_warning
            yield
    except SecateurError as error:
        if debug:
            raise
        print(f"secateur: {error}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, UsageError) else 1) from None
    except KeyboardInterrupt:
        if debug:
            raise
        print(f"\nsecateur: {when_interrupted}", file=sys.stderr)
        raise typer.Exit(130) from None


def _print_warning(message: Warning | str, category: type[Warning], *where: object, **details: object) -> None:
    """Ours as one sentence; those of libraries are for their developers."""
    if issubclass(category, SecateurWarning):
        print(f"secateur: warning: {message}", file=sys.stderr)


def _command_line() -> str:
    return shlex.join(["secateur", *sys.argv[1:]])


def main() -> None:
    app(prog_name="secateur")
