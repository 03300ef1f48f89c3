"""How much to prune: a fraction such as 0.9, or a percentage such as "90%"."""

from __future__ import annotations

import math
from contextlib import suppress
from numbers import Real

from secateur.base.errors import UsageError

Amount = float | str


def parse_amount(value: Amount) -> float:
    """The share of weights to remove, in [0, 1)."""
    amount = _number(value, "The amount to prune")
    if amount >= 1:
        unmarked = 1 < amount < 100 and "%" not in str(value)
        hint = f' Did you mean {amount / 100:g} or "{amount:g}%"?' if unmarked else ""
        raise UsageError(
            f"The amount to prune must be below 1 (100 %), but it is {value!r}: something has to remain.{hint}"
        )
    return amount


def parse_share(value: str, what: str) -> float:
    """A share of something that may exceed the whole, such as "15%" or "150%" of the original epochs."""
    if not value.strip().endswith("%"):
        raise UsageError(f'{what} is {value!r}; give a number, or a percentage such as "15%".')
    return _number(value, what)


def require_count(option: str, value: object, remedy: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{option} is {value!r}; {remedy}")


def _number(value: object, what: str) -> float:
    number = math.nan
    if isinstance(value, str):
        text = value.strip()
        with suppress(ValueError):
            number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    elif not isinstance(value, bool) and isinstance(value, Real):  # NumPy's numbers, too
        number = float(value)
    if not (math.isfinite(number) and number >= 0):
        raise UsageError(f'{what} is {value!r}; give a fraction such as 0.9 or a percentage such as "90%".')
    return number
