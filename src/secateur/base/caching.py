"""The folder for what was measured on this machine and can be used again."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from secateur.base.errors import NotWritten, SecateurWarning
from secateur.base.files import write_text


def cache_folder() -> Path:
    """SECATEUR_CACHE where it is set, else the user's folder for caches."""
    if own := os.environ.get("SECATEUR_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else _home() / ".cache") / "secateur"


def write_cache(file: Path, text: str) -> None:
    """Where the folder cannot be written, as in many containers, the work goes on: that is only a warning."""
    try:
        write_text(file, text)
    except NotWritten as error:
        warnings.warn(
            f"What was measured is not kept for the next time: {file.parent} cannot be written, because "
            f"{error.reason}; set SECATEUR_CACHE to a folder that can.",
            SecateurWarning,
            stacklevel=3,
        )


def _home() -> Path:
    """Some containers run as a user that the system does not know."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")  # what systems call the home of users without one
