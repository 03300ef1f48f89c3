"""Frozen dataclasses as plain JSON and back. What is read may come from a stranger: it is checked field by field.

The type of a field says what may stand there: numbers, text, `Literal`, arrays of indices, dataclasses, and tuples,
mappings and unions of these. Rules are `Annotated` to it: functions that return the value, or raise a ValueError. How
fields fit together, a class checks in its `__post_init__`.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from itertools import count, repeat
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from secateur.base.errors import SecateurError
from secateur.base.text import printable

T = TypeVar("T")
Reader: TypeAlias = Callable[[Any], Any]

# As the metadata of a dataclass field:
NOT_STORED: Mapping[str, bool] = {"stored": False}
ADDED_LATER: Mapping[str, bool] = {"added_later": True}
"""Files from before there was such a field lack it; its default stands for it."""
IF_THERE = {"added_later": True, "unless_none": True}
"""The same, and it is left out where it is None, so that what an earlier version wrote is written alike."""

_HEADER = ("format", "version")
_NOUNS = {int: "a whole number", float: "a number", str: "text", bool: "a boolean", list: "a list", dict: "an object"}
_LARGEST = 1 << 62
_LONGEST_REASON = 300


class Damaged(ValueError):
    """What was stored is not what `to_json` writes: where in it, and why."""

    def __init__(self, reason: object, place: str = "") -> None:
        self.reason, self.place = reason, place

    def __str__(self) -> str:
        """Fit for a terminal, whatever names are stored."""
        text = f"{self.place.lstrip('.')}: {self.reason}" if self.place else str(self.reason)
        return printable(text)[:_LONGEST_REASON]


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
    read: Reader


class Must(NamedTuple):
    """A rule: what has to hold of a value, and what is said of one that breaks it."""

    hold: Callable[[Any], Any]
    otherwise: str

    def __call__(self, value: Any) -> Any:
        if not self.hold(value):
            raise ValueError(f"{reprlib.repr(value)} {self.otherwise}")
        return value


Count = Annotated[int, Must(lambda number: number >= 0, "is negative")]
Shape = Annotated[tuple[Count, ...], Must(lambda axes: len(axes) <= 64, "has too many axes")]
Finite = Annotated[float, Must(math.isfinite, "is not a number")]
Label = Annotated[str, printable]
"""Text that ends up on a terminal."""


def to_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        header = getattr(value, "_file_format", None)
        written = {"format": header.name, "version": header.version} if header else {}
        return written | {
            name: field.write(getattr(value, name))
            for name, field in _stored_fields(type(value)).items()
            if not (field.unless_none and getattr(value, name) is None)
        }
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, float) and math.isnan(value):
        return None  # JSON has no number for it
    return value


def from_json(kind: type[T], stored: Any, place: str = "") -> T:
    """`place` begins the sentence that tells what is damaged."""
    return _read_each([place], [_reader(kind)], [stored], "{}")[0]  # type: ignore[no-any-return]


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
    write: Callable[[Any], Any]
    read: Reader
    required: bool
    unless_none: bool


@cache
def _stored_fields(kind: Any) -> dict[str, _StoredField]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.name: _StoredField(
            write=_writer(hints[field.name]),
            read=_reader(hints[field.name]),
            required=not field.metadata.get("added_later", False),
            unless_none=field.metadata.get("unless_none", False),
        )
        for field in fields(kind)
        if field.metadata.get("stored", True)
    }


def _writer(kind: Any) -> Callable[[Any], Any]:
    own = [rule.write for rule in getattr(kind, "__metadata__", ()) if isinstance(rule, StoredAs)]
    return own[0] if own else _as_it_is if kind is Any else to_json


def _reader(kind: Any) -> Reader:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any or kind is float:
        return _as_it_is if kind is Any else _read_float
    if origin is None:
        return partial(_read_dataclass if is_dataclass(kind) else _read_plain, kind)
    if origin is Annotated:
        return args[1].read if isinstance(args[1], StoredAs) else partial(_read_by_rules, [_reader(args[0]), *args[1:]])
    if origin is Literal:
        return partial(_read_literal, args)
    if origin is np.ndarray:
        return _read_indices
    if origin in (dict, Mapping):
        return partial(_read_mapping, args[0], _reader(args[1]))
    readers = [_reader(arg) for arg in args if arg not in (NoneType, Ellipsis)]
    if origin is tuple:
        return partial(_read_items, readers[0]) if Ellipsis in args else partial(_read_tuple, readers)
    return partial(_read_union, readers, NoneType in args)


def _as_it_is(value: Any) -> Any:
    return value


def _read_each(
    places: Iterable[object], readers: Iterable[Reader], stored: Iterable[Any], form: str = "[{}]"
) -> list[Any]:
    """What is refused is told with its place, within that of the whole."""
    found = []
    for place, read, item in zip(places, readers, stored, strict=False):  # one reader may serve for all
        try:
            found.append(read(item))
        except Damaged as error:
            error.place = form.format(place) + error.place
            raise
        except ValueError as error:  # of a rule, or of a class that refuses how its fields fit together
            raise Damaged(error, form.format(place)) from error
    return found


def _read_plain(kind: Any, stored: Any) -> Any:
    if type(stored) is not kind:
        raise ValueError(f"{reprlib.repr(stored)} is not {_NOUNS[kind]}")
    if kind is int and not -_LARGEST < stored < _LARGEST:
        raise ValueError(f"{reprlib.repr(stored)} is too large")
    return stored


def _read_float(stored: Any) -> Any:
    if type(stored) is int:
        return float(_read_plain(int, stored))
    return math.nan if stored is None else _read_plain(float, stored)


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
    values = _read_each(found, [expected[name].read for name in found], found.values(), ".{}")
    return kind(**dict(zip(found, values, strict=True)))


def _read_by_rules(rules: Sequence[Reader], stored: Any) -> Any:
    for rule in rules:
        stored = rule(stored)
    return stored


def _read_union(readers: Sequence[Reader], optional: bool, stored: Any) -> Any:
    """By the first that fits."""
    if stored is None and optional:
        return None
    for read in readers[:-1]:
        with suppress(ValueError):
            return read(stored)
    return readers[-1](stored)


def _read_items(reader: Reader, stored: Any) -> Any:
    return tuple(_read_each(count(), repeat(reader), _read_plain(list, stored)))


def _read_tuple(readers: Sequence[Reader], stored: Any) -> Any:
    if len(_read_plain(list, stored)) != len(readers):
        raise ValueError(f"{len(stored)} items stand where {len(readers)} belong")
    return tuple(_read_each(count(), readers, stored))


def _read_mapping(kind_of_key: Any, reader: Reader, stored: Any) -> Any:
    values = _read_each(_read_plain(dict, stored), repeat(reader), stored.values())
    keys = {name: kind_of_key(name) for name in stored}
    if other := [name for name, key in keys.items() if str(key) != name]:
        raise ValueError(f"{other[0]} is not how {keys[other[0]]} is written")  # or one key could be there twice
    return dict(zip(keys.values(), values, strict=True))


def _read_literal(choices: Sequence[Any], stored: Any) -> Any:
    if not any(type(stored) is type(choice) and stored == choice for choice in choices):
        raise ValueError(f"{reprlib.repr(stored)} is none of {', '.join(map(str, choices))}")
    return stored


def _read_indices(stored: Any) -> Any:
    if not all(type(item) is int and -_LARGEST < item < _LARGEST for item in _read_plain(list, stored)):
        raise ValueError("not all of the indices are whole numbers")
    return np.asarray(stored, np.int64)
