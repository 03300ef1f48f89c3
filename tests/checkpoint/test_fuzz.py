"""20,000 damaged checkpoints: each is refused with a `SecateurError`, or is still the one that was saved.

`scripts/fuzz.py` goes on for as long as one likes.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import secateur
from secateur.base.strict_json import refusing_damage
from secateur.checkpoint.header import Entry, parse_header
from secateur.checkpoint.manifest import Manifest
from secateur.checkpoint.reading import check_tensors
from tests.attacks.damage import damaged, tampered, unless_refused
from tests.attacks.make import Files, intact, pruned_victim, victim
from tests.support.checkpoints import state_bits

BATCH = 40


def parsed(raw: bytes) -> Manifest:
    return Manifest.from_bytes(raw, "secateur.json")


WHOLE = intact()
MANIFEST = parsed(WHOLE.raw_record)
SAVED = state_bits(pruned_victim()[0])


def header_of(weights: bytes, manifest: Manifest) -> dict[str, Entry]:
    """What `secateur.load` does with the weights before it allocates anything, on bytes in memory."""
    with refusing_damage("model.safetensors"):
        entries = parse_header(weights, len(weights))
        check_tensors(manifest, entries, {})
    return entries


@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=300)
def test_accidents_are_noticed(seed: int) -> None:
    """Nothing is sealed again, so whatever is not refused is what was saved: with a space more, for example."""
    chance = random.Random(seed)
    for _ in range(BATCH):
        manifest = unless_refused(parsed, damaged(WHOLE.raw_record, chance))
        assert manifest is None or manifest == MANIFEST


def test_records_made_up_by_an_attacker_are_refused_or_harmless(tmp_path: Path) -> None:
    """The weights are those that were saved, so whatever loads has them, bit by bit."""
    loaded = 0

    @given(seed=st.integers(0, 2**64 - 1))
    @settings(max_examples=50)
    def attack(seed: int) -> None:
        nonlocal loaded
        accepted = _accepted_record(random.Random(seed))
        if accepted is not None:
            (tmp_path / "secateur.json").write_bytes(accepted)
            (tmp_path / "model.safetensors").write_bytes(WHOLE.weights)
            model = unless_refused(secateur.load, tmp_path, victim)
            assert model is None or state_bits(model) == SAVED
            loaded += model is not None

    attack()
    assert loaded, "some were harmless"


def _accepted_record(chance: random.Random) -> bytes | None:
    """The last of a batch of records that was not refused."""
    accepted = None
    for _ in range(BATCH):
        files = Files(WHOLE.raw_record, WHOLE.weights)
        key = chance.choice([key for key in files.record if key not in ("digest", "metrics", "settings", "versions")])
        files.record[key] = tampered(files.record[key], chance)
        raw, _ = files.sealed()
        manifest = unless_refused(parsed, raw)
        if manifest is not None and unless_refused(header_of, WHOLE.weights, manifest):
            accepted = raw
    return accepted


def test_headers_made_up_by_an_attacker_never_lead_out_of_the_file() -> None:
    taken = 0

    @given(seed=st.integers(0, 2**64 - 1))
    @settings(max_examples=170)
    def attack(seed: int) -> None:
        nonlocal taken
        chance = random.Random(seed)
        for _ in range(BATCH):
            files = Files(WHOLE.raw_record, WHOLE.weights)
            if chance.random() < 0.5:
                files.weights = damaged(WHOLE.weights, chance)
            else:
                files.with_header(json.dumps(tampered(files.header, chance)).encode())
            entries = unless_refused(header_of, files.weights, MANIFEST) or {}
            taken += bool(entries)
            for entry in entries.values():
                end = entry.start + entry.dtype.itemsize * math.prod(entry.shape)
                assert 0 <= entry.start <= end <= len(files.weights)

    attack()
    assert taken > 200, "where only weights are damaged, the header is not"
