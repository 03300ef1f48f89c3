"""More than 100,000 damaged checkpoints: each is refused with a `SecateurError`, or is still the one that was saved."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import secateur
from secateur.checkpoint.header import Entry, parse_header
from secateur.checkpoint.reading import check_tensors
from secateur.checkpoint.record import Record, parse_record
from secateur.checkpoint.strict_json import refusing_damage
from tests.attacks.make import Files, intact, pruned_victim, victim
from tests.checkpoints import state_bits

BATCH = 200
Result = TypeVar("Result")
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 7, 1 << 31, 1 << 40, 1 << 63, 1 << 70, 1.5, float("nan"), float("inf"), 1e300,
    "", "conv.weight", "conv.bias", "nothing", "../x", "\n", "\ud800", [], {}, [0], [0, 0], [[]] * 3, {"": {}},
    [1 << 40] * 9,
]  # fmt: skip

WHOLE = intact()
RECORD = parse_record(WHOLE.raw_record)
SAVED = state_bits(pruned_victim()[0])


def header_of(weights: bytes, record: Record) -> dict[str, Entry]:
    """What `secateur.load` does with the weights before it allocates anything, on bytes in memory."""
    with refusing_damage("model.safetensors"):
        entries = parse_header(weights, len(weights))
        check_tensors(record, entries, {})
    return entries


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


@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=300)
def test_accidents_are_noticed(seed: int) -> None:
    """Nothing is sealed again, so whatever is not refused is what was saved: with a space more, for example."""
    chance = random.Random(seed)
    for _ in range(BATCH):
        record = unless_refused(parse_record, damaged(WHOLE.raw_record, chance))
        assert record is None or record == RECORD


@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=50)
def test_records_made_up_by_an_attacker_are_refused_or_harmless(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The weights are those that were saved, so whatever loads has them, bit by bit."""
    chance = random.Random(seed)
    accepted: bytes | None = None
    for _ in range(BATCH):
        files = Files(WHOLE.raw_record, WHOLE.weights)
        key = chance.choice([key for key in files.record if key not in ("digest", "metrics", "settings", "versions")])
        files.record[key] = tampered(files.record[key], chance)
        raw, _ = files.sealed()
        record = unless_refused(parse_record, raw)
        if record is not None and unless_refused(header_of, WHOLE.weights, record):
            accepted = raw
    if accepted is not None:
        folder = tmp_path_factory.mktemp("accepted")
        (folder / "secateur.json").write_bytes(accepted)
        (folder / "model.safetensors").write_bytes(WHOLE.weights)
        loaded = unless_refused(secateur.load, folder, victim)
        assert loaded is None or state_bits(loaded) == SAVED


@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=170)
def test_headers_made_up_by_an_attacker_never_lead_out_of_the_file(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(BATCH):
        files = Files(WHOLE.raw_record, WHOLE.weights)
        if chance.random() < 0.5:
            files.weights = damaged(WHOLE.weights, chance)
        else:
            files.with_header(json.dumps(tampered(files.header, chance)).encode())
        entries = unless_refused(header_of, files.weights, RECORD) or {}
        for entry in entries.values():
            end = entry.start + entry.dtype.itemsize * math.prod(entry.shape)
            assert 0 <= entry.start <= end <= len(files.weights)
