"""The errors and the warning that secateur raises: each says what is wrong and what to do."""

__all__ = ["LossDiverged", "SecateurError", "SecateurWarning", "UsageError"]


class SecateurError(Exception):
    """Something went wrong while working; the command line exits with 1."""


class UsageError(SecateurError, ValueError):
    """The call itself cannot be carried out as asked; the command line exits with 2."""


class LossDiverged(SecateurError):
    """Training met a loss that is NaN or infinite and stopped before it reached the weights."""


class SecateurWarning(UserWarning):
    """The call works, but the outcome may not be what its author wants."""
