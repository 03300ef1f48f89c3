"""The file of what `secateur hardware` measured: one for each machine, device and version, in the user's cache
folder."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from secateur import __version__
from secateur.base import Damaged, SecateurWarning, cache_folder, read_json
from secateur.bench.machine import Machine, this_machine

T = TypeVar("T")


def hardware_file(machine: Machine, device: str = "cpu") -> Path:
    digest = hashlib.sha256(f"{machine.name}\n{__version__}".encode()).hexdigest()[:16]
    return cache_folder() / f"{'hardware' if device == 'cpu' else device}-{digest}.json"


def read_hardware_file(read: Callable[[Any], T], machine: Machine | None = None, device: str = "cpu") -> T | None:
    """What `read` makes of the file of `machine`, by default this one; None, with a warning, if it cannot be used."""
    file = hardware_file(machine or this_machine(), device)
    try:
        stored = read_json(file)
        if not isinstance(stored, dict):
            raise Damaged("it holds no report")
        if stored.get("version") != __version__:
            raise Damaged(f"secateur {stored.get('version')} wrote it")
        return read(stored)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # not JSON, not text, or not a report
        option = "" if device == "cpu" else f" --device {device}"
        warnings.warn(
            f"The measurements in {file} are ignored ({error}); `secateur hardware{option} --again` replaces them.",
            SecateurWarning,
            stacklevel=3,
        )
        return None
