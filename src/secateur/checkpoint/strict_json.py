"""JSON from a stranger: of bounded size, every key once, and damage told in one sentence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

from secateur.base import SecateurError

__all__ = [
    "MOST_BYTES",
    "canonical_digest",
    "number_of_elements",
    "parse_object",
    "refusing_damage",
    "require_keys",
    "whole_number",
]

# The plan of a model of 70 billion parameters takes about 20 MB; parsing takes up to 25 times the memory of the text.
MOST_BYTES = 64 << 20
_MOST_AXES = 64
_LARGEST = 1 << 62
_LONGEST_REASON = 300


@contextmanager
def refusing_damage(source: str) -> Iterator[None]:
    """Whatever a damaged or malicious file makes the reading code raise becomes one sentence."""
    try:
        yield
    except SecateurError as error:
        if str(error).isprintable():
            raise
        raise _damage(source, error) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        raise _damage(source, error) from error


def _damage(source: str, error: Exception) -> SecateurError:
    reason = "".join(letter if letter.isprintable() else " " for letter in str(error))[:_LONGEST_REASON]
    return SecateurError(f"{source} is damaged ({reason.rstrip('.')}); save it again, or copy it again.")


def parse_object(raw: bytes) -> dict[str, Any]:
    if len(raw) > MOST_BYTES:
        raise ValueError(f"{len(raw):,} bytes of JSON, more than any checkpoint needs")
    try:
        found = json.loads(raw.decode("utf-8"), object_pairs_hook=_each_key_once)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("its JSON is not an object")
    return found


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two readers could each believe another of two equal keys."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def canonical_digest(contents: dict[str, Any]) -> str:
    """The same for the same contents, however they are written down."""
    return hashlib.sha256(json.dumps(contents, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def require_keys(found: Any, keys: set[str], where: str) -> None:
    if not isinstance(found, dict) or set(found) != keys:
        raise ValueError(f"{where} does not hold exactly {', '.join(sorted(keys))}")


def whole_number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise ValueError(f"{str(value)[:40]} is not a size")
    return value


def number_of_elements(shape: Any) -> int:
    """Of a shape as JSON has it. Python's integers do not overflow, however large the product."""
    if not isinstance(shape, list | tuple) or len(shape) > _MOST_AXES:
        raise ValueError(f"{str(shape)[:40]} is not a shape")
    return prod(map(whole_number, shape))
