"""Saved engines that were damaged, or made up by somebody: refused in one sentence, or harmless."""

from __future__ import annotations

import hashlib
import json
import pickle
import random
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

import secateur
from secateur.sparse import trial as choice
from secateur.sparse.engine import SparseEngine
from secateur.sparse.native import why_missing
from secateur.sparse.stored.engine_loading import load_engine
from secateur.sparse.stored.engine_manifest import EngineManifest
from secateur.sparse.stored.engine_saving import save_engine
from tests.attacks.damage import damaged, tampered, unless_refused
from tests.attacks.make import sealed_record
from tests.support.sparse_engines import ENGINES, Branching, engine_of, outputs
from tests.support.sparse_models import CONTROL, FASTER

pytestmark = pytest.mark.skipif(why_missing() is not None, reason="no layer is packed without kernels")

TERABYTES = 1 << 40


@dataclass
class Files:
    """A saved engine to tamper with. `sealed` makes it look as if nothing had happened."""

    record: dict[str, Any]
    tensors: bytes

    def sealed(self) -> bytes:
        digest = hashlib.sha256(self.tensors).hexdigest()
        return sealed_record({**self.record, "tensors": {"bytes": len(self.tensors), "digest": digest}})

    def write(self, folder: Path, raw_record: bytes | None = None) -> Path:
        (folder / "engine.json").write_bytes(self.sealed() if raw_record is None else raw_record)
        (folder / "engine.safetensors").write_bytes(self.tensors)
        return folder

    def change(self, change: Callable[[dict[str, Tensor]], Any]) -> None:
        tensors = load(self.tensors)
        change(tensors)
        self.tensors = save(tensors)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[SparseEngine, Path]:
    """Of a model that is no graph, so that an attack takes a few milliseconds."""
    folder = tmp_path_factory.mktemp("saved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "time_against_dense", lambda *_: (FASTER, CONTROL))
        torch.manual_seed(0)
        engine = engine_of("in place", zeros=0.6)
    assert [layer.sparse for layer in engine.layers] == [True, True, False]
    save_engine(engine, folder)
    return engine, folder


@pytest.fixture
def files(saved: tuple[SparseEngine, Path]) -> Files:
    return intact(saved[1])


def intact(folder: Path) -> Files:
    return Files(json.loads((folder / "engine.json").read_bytes()), (folder / "engine.safetensors").read_bytes())


def refusal(folder: Path) -> str:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(secateur.SecateurError) as caught:
        load_engine(folder, Branching)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000, "nothing large was allocated"
    sentence = str(caught.value)
    assert sentence.isprintable()
    assert sentence.endswith(".")
    assert len(sentence) < 700
    return sentence


def test_what_was_not_tampered_with_loads(saved: tuple[SparseEngine, Path], files: Files, tmp_path: Path) -> None:
    """Otherwise the attacks would be refused for another reason than the one they are here for."""
    engine, x = saved[0], ENGINES["in place"][1](3)
    assert outputs(load_engine(files.write(tmp_path), Branching), x) == outputs(engine, x)


class Bomb:
    """What a pickle would do if somebody loaded it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("pickled"),))


RECORDS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut short": (lambda raw: raw[:-40], "is damaged"),
    "flipped bit": (lambda raw: raw.replace(b'"threads": 1', b'"threads": 3'), "its digest does not fit its contents"),
    "a pickle": (lambda raw: pickle.dumps(Bomb()), "is damaged"),
    "empty": (lambda raw: b"", "is damaged"),
    "deep": (lambda raw: b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    "not an engine": (lambda raw: sealed_record({"format": "secateur-checkpoint"}), "not a sparse engine"),
}


@pytest.mark.parametrize("attack", RECORDS)
def test_a_damaged_record_is_refused(
    attack: str, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    change, reason = RECORDS[attack]
    assert reason in refusal(files.write(tmp_path, change(json.dumps(files.record).encode())))
    assert not Path("pickled").exists()


def put(*keys: Any) -> Callable[[Files], None]:
    """Sets a value of the record, which comes last."""
    *way, last, value = keys

    def change(files: Files) -> None:
        at: Any = files.record
        for key in way:
            at = at[key]
        at[last] = value

    return change


def changed(change: Callable[[dict[str, Tensor]], Any]) -> Callable[[Files], None]:
    return lambda files: files.change(change)


def at_first(name: str, value: int) -> Callable[[Files], None]:
    return changed(lambda tensors: tensors[name].flatten()[:1].fill_(value))


def forged_header(files: Files) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [TERABYTES], "data_offsets": [0, 4 * TERABYTES]}}).encode()
    files.tensors = len(header).to_bytes(8, "little") + header + bytes(64)


def as_pickle(files: Files) -> None:
    files.tensors = pickle.dumps(Bomb())


def with_example(shape: list[int], **more: Any) -> Callable[[Files], None]:
    return put("example_inputs", {"tensor": shape, "dtype": "float32", **more})


FORGERIES: dict[str, tuple[Callable[[Files], None], str]] = {
    "version from the future": (put("version", 2), "has version 2, but this secateur reads 1"),
    "one key more": (put("code", "import os"), "there is a code, which has no place there"),
    "path": (put("tensors", {"bytes": 1, "digest": "0" * 64, "name": "../x"}), ""),
    "index out of range": (at_first("linear.matrix.indices", 250), "an index lies outside its panel"),
    "rows that go back": (at_first("linear.matrix.starts", 7), "its rows do not follow one another"),
    "a row of no group": (at_first("linear.matrix.order", 200), "a row is not there exactly once in a panel"),
    "wide panels": (put("layers", 1, "panel_width", 1 << 50), "its sizes make no sense"),
    "narrow panels": (put("layers", 1, "panel_width", 0), "its sizes make no sense"),
    "blocks": (put("layers", 1, "block", 4), "its parts have other sizes"),
    "odd blocks": (put("layers", 1, "block", 3), "3 is none of 1, 4"),
    "dense without a panel": (put("layers", 2, "sparse", True), "does not fit together"),
    "shape of terabytes": (put("layers", 1, "shape", [TERABYTES, TERABYTES]), "other layers"),
    "example of terabytes": (with_example([TERABYTES, TERABYTES]), "asks for terabytes"),
    "example of nothing known": (with_example([1], dtype="code"), "is damaged"),
    "architecture of terabytes": (put("architecture", "linear.weight", [TERABYTES, 8]), "another model"),
    "name with an escape": (put("architecture", "\x1b[31m", [1]), "another model ( [31m was"),
    "other geometry": (put("layers", 0, "geometry", "stride", [2, 1]), "other layers"),
    "groups": (put("layers", 0, "geometry", "groups", 1 << 40), "other layers"),
    "activation": (put("layers", 1, "activation", "relu"), "other layers"),
    "no graph": (put("graph", "0" * 64), "build it again with sparse_engine"),
    "one layer less": (lambda files: files.record["layers"].pop(), "other layers"),
    "tied to nothing": (put("tied", "linear.bias", "nothing"), "it lacks linear.bias"),
    "channels of a vector": (put("channels_last", ["linear.bias"]), "no channels to be last"),
    "a number in words": (put("threads", "one"), "threads: 'one' is not a whole number"),
    "nan": (put("layers", 0, "sparsity", float("nan")), "sparsity: nan is not a number"),
    "tensor missing": (changed(lambda tensors: tensors.pop("norm.running_var")), "it lacks norm.running_var"),
    "packed part missing": (changed(lambda tensors: tensors.pop("linear.matrix.values")), "it lacks linear.matrix"),
    "stranger": (changed(lambda tensors: tensors.update(code=torch.zeros(2))), "it holds code, which has no place"),
    "other shape": (changed(lambda t: t.update({"norm.weight": torch.zeros(9)})), "it lacks norm.weight as"),
    "other dtype": (changed(lambda t: t.update({"norm.weight": torch.zeros(8).double()})), "it lacks norm.weight as"),
    "bias too short": (changed(lambda t: t.update({"linear.bias": torch.zeros(1)})), "it lacks linear.bias as"),
    "tensor of terabytes": (forged_header, "do not follow|tensors end at|does not fit|damaged"),
    "a pickle in disguise": (as_pickle, "its header is longer than the file"),
}


@pytest.mark.parametrize("attack", FORGERIES)
def test_a_forged_engine_is_refused(attack: str, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealed anew, with sizes and digests that fit."""
    monkeypatch.chdir(tmp_path)
    change, reason = FORGERIES[attack]
    change(files)
    sentence = refusal(files.write(tmp_path, sealed_record(files.record) if attack == "path" else None))
    assert any(part in sentence for part in reason.split("|")), sentence
    assert not Path("pickled").exists()


def test_nothing_in_a_report_reaches_the_terminal_as_a_command(files: Files, tmp_path: Path) -> None:
    files.record |= {"notes": ["\x1b[2Jgone"], "machine": "a\x07b"}
    files.record["layers"][0]["reason"] = "\x1b]0;"
    report = str(load_engine(files.write(tmp_path), Branching))
    assert "gone" in report
    assert all(line.isprintable() for line in report.splitlines())


def test_damaged_tensors_are_refused(files: Files, tmp_path: Path) -> None:
    files.write(tmp_path)
    stored = tmp_path / "engine.safetensors"
    for raw in (files.tensors[:-1], files.tensors + b"0", bytes([files.tensors[0] ^ 1]) + files.tensors[1:], b""):
        stored.write_bytes(raw)
        assert "is not the file that engine.json was saved with" in refusal(tmp_path)
    stored.unlink()
    assert "missing" in refusal(tmp_path)


def test_a_graph_of_terabytes_is_refused_before_it_takes_any_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "time_against_dense", lambda *_: (FASTER, CONTROL))
    save_engine(engine_of("shared"), tmp_path)
    files = intact(tmp_path)
    files.record["example_inputs"] = {"tensor": [2, 8, 1 << 18, 1 << 17], "dtype": "float32"}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unless_refused(load_engine, files.write(tmp_path), ENGINES["shared"][0])
    files.record["example_inputs"] = {"tensor": [2, 9, 6, 6], "dtype": "float32"}
    with pytest.raises(secateur.SecateurError, match=r"does not fit the model .*build it again with sparse_engine\.$"):
        load_engine(files.write(tmp_path), ENGINES["shared"][0])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=50)
def test_accidents_with_the_record_are_noticed(saved: tuple[SparseEngine, Path], seed: int) -> None:
    """Nothing is sealed again, so whatever is not refused is what was saved: with a space more, for example."""
    chance, raw = random.Random(seed), (saved[1] / "engine.json").read_bytes()
    whole = EngineManifest.from_bytes(raw, "engine.json").to_bytes()
    for _ in range(100):
        manifest = unless_refused(EngineManifest.from_bytes, damaged(raw, chance), "engine.json")
        assert manifest is None or manifest.to_bytes() == whole


@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=60)
def test_engines_made_up_by_an_attacker_are_refused_or_run(
    saved: tuple[SparseEngine, Path], tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Whatever loads can be called, printed and saved again."""
    chance, folder = random.Random(seed), tmp_path_factory.mktemp("forged")
    for _ in range(10):
        files = intact(saved[1])
        if chance.random() < 0.5:
            key = chance.choice([key for key in files.record if key not in ("digest", "tensors")])
            files.record[key] = tampered(files.record[key], chance)
        else:
            length = int.from_bytes(files.tensors[:8], "little")
            at = chance.choice((0, 8 + length))  # the header as well, or only the numbers
            files.tensors = files.tensors[:at] + damaged(files.tensors[at:], chance)
        if (loaded := unless_refused(load_engine, files.write(folder), Branching)) is not None:
            loaded(ENGINES["in place"][1](2))
            assert str(loaded)
            save_engine(loaded, folder)
