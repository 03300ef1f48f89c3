"""What a person sees of an error, a warning and Ctrl-C on the command line."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from secateur.base import SecateurError, SecateurWarning, UsageError

__all__ = ["command_line", "errors_in_one_sentence"]


@contextmanager
def errors_in_one_sentence(debug: bool, when_interrupted: str) -> Iterator[None]:
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


def command_line() -> str:
    return shlex.join(["secateur", *sys.argv[1:]])
