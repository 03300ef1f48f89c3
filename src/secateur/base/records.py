"""Frozen dataclasses as plain JSON and back. What is read may come from a stranger: it is checked field by field.

The type of a field says what may stand there: numbers, text, `Literal`, arrays of indices, dataclasses, and tuples,
mappings and unions of these. Rules are `Annotated` to it: functions that return the value, or raise a ValueError. How
fields fit together, a class checks in its `__post_init__`. A field with a default may be missing, as it is in a file
that was written before there was such a field.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from secateur.base.errors import SecateurError

__all__ = [
    "NOT_STORED",
    "Count",
    "Damaged",
    "FileFormat",
    "Finite",
    "Label",
    "Shape",
    "StoredAs",
    "from_json",
    "printable",
    "require_format",
    "to_json",
]

T = TypeVar("T")

NOT_STORED: Mapping[str, bool] = {"stored": False}
"""As the metadata of a dataclass field: neither written nor read."""

_HEADER = ("format", "version")
_LARGEST = 1 << 62
_MOST_AXES = 64
_LONGEST_REASON = 300


class Damaged(ValueError):
    """What was stored is not what `to_json` writes. Fit for a terminal, whatever the stored names are."""

    def __init__(self, reason: object, place: str = "") -> None:
        self.reason, self.place = str(reason), place
        super().__init__(printable(f"{place.lstrip('.')}: {reason}" if place else self.reason)[:_LONGEST_REASON])


class FileFormat(NamedTuple):
    """As `_file_format` of a dataclass: its JSON begins with the format's name and version."""

    name: str
    version: int
    what: str
    written_by: str


@dataclass(frozen=True)
class StoredAs:
    """`Annotated` to the type of a field whose JSON is of another form than the value."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _not_negative(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number


def _few_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) > _MOST_AXES:
        raise ValueError(f"{len(shape):,} axes are no shape")
    return shape


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a number")
    return number


Count = Annotated[int, _not_negative]
Shape = Annotated[tuple[Count, ...], _few_axes]
Finite = Annotated[float, _finite]
Label = Annotated[str, printable]
"""Text that ends up on a terminal."""


def to_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        header = getattr(value, "_file_format", None)
        written = {"format": header.name, "version": header.version} if header else {}
        return written | {
            name: field.write(getattr(value, name)) for name, field in _stored_fields(type(value)).items()
        }
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(key): to_json(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, float) and math.isnan(value):
        return None  # JSON has no number for it
    return value


def from_json(kind: type[T], stored: Any, place: str = "") -> T:
    """`place` begins the sentence that tells what is damaged."""
    return _at(place, kind, stored)  # type: ignore[no-any-return]


def require_format(
    stored: Any, format_name: str, version: int | str, what: str, written_by: str, source: str = "This"
) -> None:
    if not isinstance(stored, Mapping) or stored.get("format") != format_name:
        raise SecateurError(f"{source} is not a {what}; give what {written_by} wrote.")
    found = stored.get("version")
    if type(found) is not type(version) or found != version:
        raise SecateurError(
            f"The {what} has version {printable(str(found)[:20])}, but this secateur reads {version}; "
            "use the version of secateur that wrote it."
        )


class _StoredField(NamedTuple):
    kind: Any
    required: bool

    def write(self, value: Any) -> Any:
        if self.kind is Any:
            return value
        own = [rule for rule in getattr(self.kind, "__metadata__", ()) if isinstance(rule, StoredAs)]
        return own[0].write(value) if own else to_json(value)


@cache
def _stored_fields(kind: Any) -> dict[str, _StoredField]:
    def required(field: Field[Any]) -> bool:
        return field.default is MISSING and field.default_factory is MISSING

    hints = get_type_hints(kind, include_extras=True)
    stored = [field for field in fields(kind) if field.metadata.get("stored", True)]
    return {field.name: _StoredField(hints[field.name], required(field)) for field in stored}


def _at(step: str, kind: Any, stored: Any) -> Any:
    """Reads, and adds the step to where in the whole something is damaged."""
    try:
        return _read(kind, stored)
    except Damaged as error:
        raise Damaged(error.reason, step + error.place) from error.__cause__
    except ValueError as error:  # of a rule, or of a class that refuses how its fields fit together
        raise Damaged(error, step) from error


def _read(kind: Any, stored: Any) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return stored
    if is_dataclass(kind):
        return _read_dataclass(kind, stored)
    if origin is None:
        return _read_plain(kind, stored)
    return _READERS[origin](args, stored)


def _read_plain(kind: type, stored: Any) -> Any:
    if kind is float:
        return math.nan if stored is None else _as_float(stored)
    if type(stored) is not kind or (isinstance(stored, int) and abs(stored) >= _LARGEST):
        raise ValueError(f"{reprlib.repr(stored)} is not {_IN_WORDS[kind]}")
    return stored


def _as_float(stored: Any) -> float:
    if type(stored) is not float and (type(stored) is not int or abs(stored) >= _LARGEST):
        raise ValueError(f"{reprlib.repr(stored)} is not a number")
    return float(stored)


_IN_WORDS = {int: "a whole number", str: "text", bool: "true or false", list: "a list", dict: "an object"}


def _read_dataclass(kind: Any, stored: Any) -> Any:
    header = getattr(kind, "_file_format", None)
    if header:
        require_format(stored, *header)
    found = {key: item for key, item in _read_plain(dict, stored).items() if not header or key not in _HEADER}
    expected = _stored_fields(kind)
    for unknown in found.keys() - expected.keys():
        raise ValueError(f"there is a {unknown}, which has no place there")
    for missing in [name for name, field in expected.items() if field.required and name not in found]:
        raise ValueError(f"there is no {missing}")
    return kind(**{name: _at(f".{name}", expected[name].kind, item) for name, item in found.items()})


def _read_annotated(args: tuple[Any, ...], stored: Any) -> Any:
    kind, *rules = args
    if isinstance(rules[0], StoredAs):
        return rules[0].read(stored)
    value = _read(kind, stored)
    for rule in rules:
        value = rule(value)
    return value


def _read_union(args: tuple[Any, ...], stored: Any) -> Any:
    """The first that fits; where there is one only besides None, its refusal says more."""
    if stored is None and NoneType in args:
        return None
    *others, last = (kind for kind in args if kind is not NoneType)
    for kind in others:
        try:
            return _read(kind, stored)
        except ValueError:
            continue
    return _read(last, stored)


def _read_tuple(args: tuple[Any, ...], stored: Any) -> Any:
    items = _read_plain(list, stored)
    kinds = (args[0],) * len(items) if args[-1] is Ellipsis else args
    if len(items) != len(kinds):
        raise ValueError(f"{len(items)} items stand where {len(args)} belong")
    return tuple(_at(f"[{i}]", kind, item) for i, (kind, item) in enumerate(zip(kinds, items, strict=True)))


def _read_mapping(args: tuple[Any, ...], stored: Any) -> Any:
    key, kind = args
    items = _read_plain(dict, stored)
    return {_read_key(key, name): _at(f"[{name}]", kind, item) for name, item in items.items()}


def _read_key(kind: Any, name: str) -> Any:
    if kind is str:
        return name
    key = kind(name)
    if repr(key) != name:  # two spellings of a number would be one key twice
        raise ValueError(f"{name} is not how {key} is written")
    return key


def _read_literal(args: tuple[Any, ...], stored: Any) -> Any:
    if not any(type(stored) is type(choice) and stored == choice for choice in args):
        raise ValueError(f"{reprlib.repr(stored)} is none of {', '.join(map(str, args))}")
    return stored


def _read_indices(args: tuple[Any, ...], stored: Any) -> Any:
    items = _read_plain(list, stored)
    if not all(type(item) is int and abs(item) < _LARGEST for item in items):
        raise ValueError("not all of the indices are whole numbers")
    return np.asarray(items, np.int64)


_READERS: Mapping[Any, Callable[[tuple[Any, ...], Any], Any]] = {
    Annotated: _read_annotated,
    Union: _read_union,
    UnionType: _read_union,
    tuple: _read_tuple,
    dict: _read_mapping,
    Mapping: _read_mapping,
    Literal: _read_literal,
    np.ndarray: _read_indices,
}
