"""The errors and the warning that secateur raises: each says what is wrong and what to do."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from secateur.base.text import on_a_screen


class SecateurError(Exception):
    """Something went wrong while working; the command line exits with 1."""

    def __str__(self) -> str:
        """A sentence may name what a stranger's file holds."""
        return on_a_screen(super().__str__())


class UsageError(SecateurError, ValueError):
    """The call itself cannot be carried out as asked; the command line exits with 2."""


class NotWritten(SecateurError):
    """A file could not be written; what was saved before is intact."""

    def __init__(self, sentence: str, reason: str) -> None:
        super().__init__(sentence)
        self.reason = reason
        """In a few words, the same for every file in the folder."""


class LossDiverged(SecateurError):
    """Training met a loss that is NaN or infinite and stopped before it reached the weights."""


class SecateurWarning(UserWarning):
    """The call works, but the outcome may not be what its author wants."""


def in_brief(error: BaseException) -> str:
    """Somebody else's error within a sentence of ours: its kind and the first line of what it says, without colours."""
    message = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    return f"{type(error).__name__}: {message.partition(chr(10))[0]}".rstrip(": .")


@contextmanager
def explaining(
    what: str, remedy: str, kind: type[SecateurError] = UsageError, but: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Whatever somebody else's code raises becomes one sentence of ours; what is in `but` passes as it is."""
    try:
        yield
    except but:
        raise
    except Exception as error:
        raise kind(f"{what} ({in_brief(error)}); {remedy}") from error
