"""Frozen dataclasses as plain JSON and back. What is read is checked, field by field."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from secateur.base.errors import SecateurError

__all__ = ["Damaged", "from_json", "require_format", "to_json"]

T = TypeVar("T")


class Damaged(ValueError):
    """What was stored is not what `to_json` writes."""


def to_json(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return None  # JSON has no number for it
    return value


def from_json(kind: type[T], stored: Any, place: str) -> T:
    """`place` begins the sentence that tells what is damaged."""
    return _read(kind, stored, place)  # type: ignore[no-any-return]


def _read(kind: Any, stored: Any, place: str) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin is UnionType:  # X | None
        return None if stored is None else _read(args[0], stored, place)
    if origin is tuple:
        return tuple(_read(args[0], item, f"{place}[{i}]") for i, item in enumerate(_of(list, stored, place)))
    if origin is dict:
        return {key: _read(args[1], item, f"{place}[{key}]") for key, item in _of(dict, stored, place).items()}
    if is_dataclass(kind):
        return _read_dataclass(kind, _of(dict, stored, place), place)
    if kind is float:
        return math.nan if stored is None else float(_of((int, float), stored, place))
    return _of(kind, stored, place)


def _read_dataclass(kind: Any, stored: dict[str, Any], place: str) -> Any:
    hints = get_type_hints(kind)
    if stored.keys() != hints.keys():
        raise Damaged(f"{place} has the fields {', '.join(map(str, stored))} instead of {', '.join(hints)}")
    values = {name: _read(hint, stored[name], f"{place}.{name}") for name, hint in hints.items()}
    try:
        return kind(**values)
    except ValueError as error:  # what the class itself refuses
        raise Damaged(f"{place} {error}") from error


def _of(kind: Any, stored: Any, place: str) -> Any:
    if not isinstance(stored, kind) or (isinstance(stored, bool) and kind is not bool):
        raise Damaged(f"{place} is {stored!r:.40}")
    return stored


def require_format(stored: Any, format_name: str, version: int, what: str, written_by: str) -> None:
    if not isinstance(stored, dict) or stored.get("format") != format_name:
        raise SecateurError(f"This is not the {what}; give what {written_by} wrote.")
    if stored.get("version") != version:
        raise SecateurError(
            f"The {what} has version {stored.get('version')!r}, but this secateur reads {version}; "
            "use the version of secateur that wrote it."
        )
