"""The names of layers and parameters: patterns that fit them, typos in them, and reasons to leave them alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from glob import escape
from typing import TYPE_CHECKING, TypeVar

from secateur.base.errors import UsageError
from secateur.base.text import some_of

if TYPE_CHECKING:
    from torch import nn

Value = TypeVar("Value")


def nearest(word: str, known: Iterable[str], similarity: float = 0.6) -> str | None:
    """The known word that a person who wrote `word` most likely meant; None where none is close."""
    return next(iter(get_close_matches(word, list(known), 1, similarity)), None)


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """Ends a sentence that refuses a word."""
    close = nearest(word, known)
    return otherwise if close is None else f"did you mean {close!r}?"


def require_one_of(what: str, word: object, known: Collection[str], besides: str = "") -> None:
    """Refuses a word that is not known. `besides` follows the list of those that are."""
    if word not in list(known):  # which may be a dict, and the word not hashable
        close = nearest(str(word), known)
        hint = f" Did you mean {close!r}?" if close else ""
        raise UsageError(f"There is no {what} {word!r}; choose one of {', '.join(known)}{besides}.{hint}")


@dataclass(frozen=True)
class LeftAlone:
    """A parameter that is not pruned, and why."""

    name: str
    reason: str


def left_alone_lines(left_alone: Sequence[LeftAlone]) -> list[str]:
    """Names with the same reason on one line."""
    by_reason: dict[str, list[str]] = {}
    for item in left_alone:
        by_reason.setdefault(item.reason, []).append(item.name)
    return [f"left alone: {some_of(names)}: {reason}" for reason, names in by_reason.items()]


def listed(option: str, patterns: Iterable[str | nn.Module]) -> tuple[str | nn.Module, ...]:
    """The patterns whatever they came in; a generator would be empty at its second use."""
    if isinstance(patterns, str) or not isinstance(patterns, Iterable):
        raise UsageError(f"{option} is {patterns!r}; give a list of names, such as {option}=['classifier'].")
    return tuple(patterns)


def named(option: str, patterns: Iterable[str | nn.Module], model: nn.Module) -> list[str]:
    """The patterns as names; modules of the model by theirs."""
    return [_as_name(option, pattern, model) for pattern in listed(option, patterns)]


def _as_name(option: str, pattern: object, model: nn.Module) -> str:
    if isinstance(pattern, str):
        return pattern
    for name, module in model.named_modules():
        if module is pattern:
            return escape(name) or "*"
    raise UsageError(
        f"{option} holds a {type(pattern).__name__} that is no layer of the model; give its layers, or names such as "
        f"{option}=['classifier']."
    )


def require_known(option: str, patterns: Iterable[str], names: Sequence[str]) -> None:
    """Refuses a pattern that names nothing, because a typo there would prune what the user wanted to protect."""
    for pattern in patterns:
        if not any(_matches(pattern, name) for name in names):
            prefixes = sorted({prefix for name in names for prefix in _prefixes(name)})
            hint = did_you_mean(pattern, prefixes, f"parameters are called, for example, {names[:3]}.")
            raise UsageError(f"{option} names {pattern!r}, but nothing prunable in the model is called that; {hint}")


def first_match(options: Mapping[str, Value], names: Sequence[str]) -> Value | None:
    """The value of the first pattern that fits one of the names."""
    return next((value for pattern, value in options.items() if matches_any([pattern], names)), None)


def matches_any(patterns: Iterable[str], names: Iterable[str]) -> bool:
    """Whether one of the patterns names one of the parameters, or a module that holds it."""
    return any(_matches(pattern, name) for name in names for pattern in patterns)


def _matches(pattern: str, name: str) -> bool:
    """Whether `pattern` names the parameter itself or a module that holds it."""
    return any(fnmatchcase(prefix, pattern) for prefix in _prefixes(name))


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]
