"""The folder for what was measured on this machine and can be used again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """SECATEUR_CACHE where it is set, else the user's folder for caches."""
    if own := os.environ.get("SECATEUR_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "secateur"
