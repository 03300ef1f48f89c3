"""Damage to files, by accident or by somebody who knows their format."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

import secateur

Result = TypeVar("Result")
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 7, 1 << 31, 1 << 40, 1 << 63, 1 << 70, -(1 << 63), 10**400, 1.5, float("nan"),
    float("inf"), -float("inf"), 1e300, 5e-324, "", "conv.weight", "conv.bias", "nothing", "../x", "\n", "\ud800",
    "\x1b[2J\x07", "a\0b", "name" * 10_000, [], {}, [0], [0, 0], [[]] * 3, {"": {}},
    [1 << 40] * 9,
]  # fmt: skip


def unless_refused(read: Callable[..., Result], *args: Any) -> Result | None:
    """Any other error than a refusal in one line fails the test."""
    try:
        return read(*args)
    except secateur.SecateurError as error:
        refusal = str(error)
    assert refusal.isprintable()
    return None


def damaged(raw: bytes, chance: random.Random) -> bytes:
    """Bits flipped, bytes overwritten, cut out, repeated or cut off."""
    changed = bytearray(raw)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        at, length = chance.randrange(len(changed)), chance.choice((1, 1, 2, 8, 100))
        match chance.randrange(5):
            case 0:
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                changed[at : at + length] = chance.randbytes(length)
            case 2:
                del changed[at : at + length]
            case 3:
                changed[at:at] = changed[at : at + length]
            case 4:
                del changed[max(at, 1) :]
        if not changed:
            break
    return bytes(changed)


def tampered(tree: Any, chance: random.Random) -> Any:
    """One value of the tree replaced, removed, renamed, repeated or moved a little."""
    if isinstance(tree, dict) and tree and chance.random() < 0.9:
        key = chance.choice(list(tree))
        match chance.randrange(12):
            case 0:
                return {k: v for k, v in tree.items() if k != key}
            case 1:
                return {(str(chance.choice(ODD)) if k == key else k): v for k, v in tree.items()}
            case 2:
                return {**tree, str(chance.choice(ODD)): tree[key]}
            case _:
                return {**tree, key: tampered(tree[key], chance)}
    if isinstance(tree, list) and tree and chance.random() < 0.9:
        at = chance.randrange(len(tree))
        match chance.randrange(6):
            case 0:
                return tree[:at] + tree[at + 1 :]
            case 1:
                return [*tree[:at], tree[at], *tree[at:]]
            case 2:
                return tree[::-1]
            case _:
                return [*tree[:at], tampered(tree[at], chance), *tree[at + 1 :]]
    if type(tree) is int and chance.random() < 0.5:
        return tree + chance.choice((-1, 1))
    return chance.choice(ODD)
