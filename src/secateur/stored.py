"""Frozen dataclasses as plain JSON and back. What is read is checked, field by field."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from secateur.measure.timing import Timing

__all__ = ["Damaged", "from_json", "to_json"]

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
    value = kind(**{name: _read(hint, stored[name], f"{place}.{name}") for name, hint in hints.items()})
    if isinstance(value, Timing):
        numbers = (value.seconds, value.ratio, value.low, value.high)
        if not all(0 < number < math.inf for number in numbers):
            raise Damaged(f"{place} is not a measurement: {numbers}")
    return value


def _of(kind: Any, stored: Any, place: str) -> Any:
    if not isinstance(stored, kind) or (isinstance(stored, bool) and kind is not bool):
        raise Damaged(f"{place} is {stored!r:.40}")
    return stored
