"""What a person sees on the command line of an error, the user's own or ours, of a warning, and of Ctrl-C."""

from __future__ import annotations

import shlex
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import typer

from secateur.base import SecateurError, SecateurWarning, UsageError, in_brief, printable
from secateur.commands.command import as_typed


@contextmanager
def errors_in_one_sentence(debug: bool, when_interrupted: str) -> Iterator[None]:
    """Exit code 2 for a call that cannot work, 1 for a failure, 130 for Ctrl-C; a traceback only with --debug."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(_print_warning, set())
            yield
    except SecateurError as error:
        if debug:
            raise
        sentence = str(error) if isinstance(error, _Failed) else as_typed(str(error))
        print(f"secateur: {sentence}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, UsageError) else 1) from None
    except KeyboardInterrupt:
        if debug:
            raise
        print(f"\nsecateur: {when_interrupted}", file=sys.stderr)
        raise typer.Exit(130) from None


def _print_warning(
    told: set[str], message: Warning | str, category: type[Warning], *where: object, **details: object
) -> None:
    """Ours as one sentence, each once; those of libraries are for their developers."""
    if issubclass(category, SecateurWarning) and str(message) not in told:
        told.add(str(message))
        print(f"secateur: warning: {as_typed(printable(str(message)))}", file=sys.stderr)


def command_line() -> str:
    return shlex.join(["secateur", *sys.argv[1:]])


@contextmanager
def file_errors_in_one_sentence(file: Path | None) -> Iterator[None]:
    """What a user's file raises, with its line; where that is not known yet, with the line of any code of theirs."""
    try:
        yield
    except SecateurError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if file is not None and Path(frame.filename) == file.absolute()]
        raise _failed(error, own or _users_frames(error) or frames) from error


@contextmanager
def users_errors_in_one_sentence() -> Iterator[None]:
    """What the user's model and data raise while secateur works with them, with the line. What secateur itself raises
    without their help goes on as it is."""
    try:
        yield
    except SecateurError:
        raise
    except Exception as error:
        frames = _users_frames(error)
        if not frames:
            raise
        raise _failed(error, frames) from error


class _Failed(SecateurError):
    """Of the user's own code, in its own words."""


def _failed(error: BaseException, frames: Sequence[traceback.FrameSummary]) -> _Failed:
    """Names the innermost of the frames; a syntax error knows its own place."""
    file, line = frames[-1].filename, frames[-1].lineno
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno
    return _Failed(f"{Path(file).name}:{line} failed ({in_brief(error)}); fix it there, or see --debug.")


def _users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Those of neither secateur, nor Python, nor installed packages."""
    installed = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    foreign = [Path(__file__).parents[1], *installed]
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not any(Path(frame.filename).is_relative_to(path) for path in foreign)
    ]
