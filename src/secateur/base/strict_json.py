"""JSON from a stranger: of bounded size, every key once, and damage told in one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from secateur.base.errors import SecateurError, UsageError
from secateur.base.files import did_you_mean_path
from secateur.base.records import Damaged, from_json
from secateur.base.regular import MOST_BYTES, read_regular

T = TypeVar("T")


@contextmanager
def refusing_damage(source: object) -> Iterator[None]:
    """Whatever a damaged or malicious file makes the reading code raise becomes one sentence."""
    try:
        yield
    except SecateurError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        reason = str(Damaged(error)).rstrip(".")
        raise SecateurError(f"{source} is damaged ({reason}); save it again, or copy it again.") from error


def parse_json(raw: bytes) -> Any:
    """Raises a ValueError where it is none."""
    if len(raw) > MOST_BYTES:
        raise ValueError(f"{len(raw):,} bytes of JSON, more than any file needs")
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_each_key_once)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two readers could each believe another of two equal keys."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def read_json(file: Path, most: int = MOST_BYTES) -> Any:
    """Raises an OSError or a ValueError where that is not possible, or where the file has more than `most` bytes."""
    return parse_json(read_regular(file, most))


def load_record(kind: type[T], path: str | Path) -> T:
    """A record with a file format, from the file that its `to_json` was written to."""
    what = kind._file_format.what  # type: ignore[attr-defined]
    try:
        stored = read_json(Path(path))
    except FileNotFoundError:
        raise UsageError(f"There is no {what} {path}; {did_you_mean_path(Path(path))}") from None
    except (OSError, ValueError) as error:
        raise SecateurError(f"{path} is not a readable {what} ({error}); save it again.") from error
    return read_record(kind, stored)


def read_record(kind: type[T], stored: Any) -> T:
    """A record with a file format, from what its `to_json` gave."""
    try:
        return from_json(kind, stored)
    except Damaged as error:
        raise SecateurError(f"The {kind._file_format.what} is damaged ({error}); make it again.") from error  # type: ignore[attr-defined]
