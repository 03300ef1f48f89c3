"""Checkpoints that somebody has tampered with: each is refused with one sentence, cheaply, and nothing is run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import secateur
from tests.attacks import make
from tests.attacks.make import CORPUS, MARKER, victim
from tests.support.checkpoints import Language, masked, state_bits
from tests.support.forked import Program

ROOT = Path(__file__).parents[2]

LOAD_THEM_ALL = """
import json, resource, sys
from pathlib import Path
import secateur
from tests.attacks.make import CORPUS, victim

secateur.load  # whatever is imported, is imported before memory is measured
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
said = {}
for folder in sorted(Path(sys.argv[1]).iterdir()):
    try:
        secateur.load(folder, victim)
        said[folder.name] = "loaded"
    except secateur.SecateurError as error:
        said[folder.name] = str(error)
print(json.dumps(said))
"""


def load_all(corpus: Path, cwd: Path) -> dict[str, str]:
    """In a process that may take 200 MB and a minute, and that any other error ends."""
    done = Program(LOAD_THEM_ALL, corpus, folder=cwd, environment={"PATH": ""}).wait()
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, str] = json.loads(done.stdout)
    return said


def test_every_attack_is_refused_in_one_sentence_and_nothing_is_run(tmp_path: Path) -> None:
    said = load_all(CORPUS, tmp_path)
    assert len(said) > 60
    for name, sentence in said.items():
        assert sentence != "loaded", name
        assert sentence.isprintable(), name
        assert sentence.endswith("."), name
        assert len(sentence) < 700, name
    assert not list(tmp_path.iterdir()), "nothing was written, by a pickle or otherwise"
    assert not (ROOT / MARKER).exists()


def test_the_corpus_is_what_its_script_makes() -> None:
    assert {name for name, _ in make.attacks()} == {folder.name for folder in CORPUS.iterdir()}


def test_what_was_not_tampered_with_loads(tmp_path: Path) -> None:
    """Otherwise the corpus would be refused for another reason than the one it is there for."""
    intact = make.intact()
    for name, (record, weights) in {"as saved": (intact.raw_record, intact.weights), "sealed": intact.sealed()}.items():
        (tmp_path / "secateur.json").write_bytes(record)
        (tmp_path / "model.safetensors").write_bytes(weights)
        assert state_bits(secateur.load(tmp_path, victim)), name


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        ("version-from-the-future", "has version 2, but this secateur reads 1"),
        ("index-out-of-range", "out of range or out of order"),
        ("index-twice", "out of range or out of order"),
        ("plan-of-another-architecture", "which the architecture has in another shape"),
        ("file-outside-the-folder", "the files are not model.safetensors and"),
        ("tensor-of-terabytes", "the shape of conv.bias does not fit its bytes"),
        ("header-of-exabytes", "its header is longer than the file"),
        ("record-deep", "nested too deeply"),
        ("record-flipped-bit", "its digest does not fit its contents"),
        ("weights-flipped-bit", "is not the file that secateur.json was saved with"),
        ("pickle-as-weights", "its header is longer than the file"),
    ],
)
def test_the_sentence_says_what_is_wrong(attack: str, reason: str) -> None:
    with pytest.raises(secateur.SecateurError, match=reason):
        secateur.load(CORPUS / attack, victim)


def test_a_stranger_among_the_extras_is_refused(tmp_path: Path) -> None:
    model, masks = masked(Language())
    secateur.save(model, masks, tmp_path, dense=True)
    extras, record = tmp_path / "extras.safetensors", tmp_path / "secateur.json"
    tensors = load_file(extras)
    for stranger, taken_away in (("head.weight", None), (".code.run", None), (".mask.nothing", None), (None, ".mask.")):
        changed = {name: each for name, each in tensors.items() if taken_away is None or taken_away not in name}
        save_file({**changed, **({stranger: torch.zeros(2, dtype=torch.uint8)} if stranger else {})}, extras)
        contents = json.loads(record.read_bytes())
        raw = extras.read_bytes()
        contents["files"][extras.name] = {"bytes": len(raw), "digest": hashlib.sha256(raw).hexdigest()}
        record.write_bytes(make.sealed_record(contents))
        with pytest.raises(secateur.SecateurError, match="is damaged"):
            secateur.load(tmp_path, Language)
