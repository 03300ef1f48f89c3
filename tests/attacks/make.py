"""Writes the corpus: one folder for each attack, a checkpoint of `victim()` that somebody has tampered with.

`python -m tests.attacks.make` writes it anew. Digests are computed here once more, independently of the library: an
attacker can do that, too, so that they protect against accidents only, and everything else has to be checked.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import secateur
from tests.support.cutting import Heads, Net, image, sequence

CORPUS = Path(__file__).parent / "corpus"
MARKER = "a-checkpoint-ran-code"
HUGE = 1 << 40


def victim() -> Net:
    return Net(width=4, hidden=6)


class Files:
    """The files of a checkpoint in memory, and how to seal them again after a change."""

    def __init__(self, record: bytes, weights: bytes) -> None:
        self.raw_record = record
        self.weights = weights

    @cached_property
    def record(self) -> dict[str, Any]:
        return json.loads(self.raw_record)  # type: ignore[no-any-return]

    @property
    def header(self) -> dict[str, Any]:
        length = int.from_bytes(self.weights[:8], "little")
        return json.loads(self.weights[8 : 8 + length])  # type: ignore[no-any-return]

    def with_header(self, header: bytes, length: int | None = None) -> None:
        old = 8 + int.from_bytes(self.weights[:8], "little")
        self.weights = (len(header) if length is None else length).to_bytes(8, "little") + header + self.weights[old:]

    def sealed(self) -> tuple[bytes, bytes]:
        """With the digests that fit."""
        stored = {"bytes": len(self.weights), "digest": hashlib.sha256(self.weights).hexdigest()}
        if isinstance(self.record.get("files"), dict):
            self.record["files"]["model.safetensors"] = stored
        return sealed_record(self.record), self.weights


def sealed_record(record: dict[str, Any]) -> bytes:
    rest = {key: value for key, value in record.items() if key != "digest"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return json.dumps({**rest, "digest": hashlib.sha256(canonical.encode()).hexdigest()}).encode()


def pruned_victim() -> tuple[Net, list[secateur.Plan | secateur.Masks]]:
    """Half of the channels cut, then half of the weights masked."""
    torch.manual_seed(0)
    model = victim().eval()
    plan = secateur.plan_channels(model, image(), 0.5)
    secateur.apply(model, plan)
    masks = secateur.plan_weights(model, 0.5, scope="layer")
    return secateur.apply(model, masks), [plan, masks]


def intact() -> Files:
    with tempfile.TemporaryDirectory() as folder:
        secateur.save(*pruned_victim(), folder)
        return Files(*((Path(folder) / name).read_bytes() for name in ("secateur.json", "model.safetensors")))


class Pickled:
    """Unpickled, it creates a file."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (Path(MARKER),)


# In the record, sealed again.


def set_in_record(*way: str | int, value: Any) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        holder: Any = files.record
        for step in way[:-1]:
            holder = holder[step]
        holder[way[-1]] = value

    return change


def plan_of_another_architecture(files: Files) -> None:
    model = Heads()
    files.record["plan"] = secateur.plan_channels(model, sequence(), 0.5).to_json()


def without(*way: str) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        holder: Any = files.record
        for step in way[:-1]:
            holder = holder[step]
        del holder[way[-1]]

    return change


def attribute_out_of_the_model(files: Files) -> None:
    way = ["forward", "__globals__", "__builtins__"]
    files.record["plan"]["attributes"] = [{"module": "", "way": way, "old": 1, "new": 2}]


KEPT = ("plan", "tensors", "conv.weight", "kept")

RECORDS: dict[str, Callable[[Files], None]] = {
    "version-from-the-future": set_in_record("version", value=2),
    "version-true": set_in_record("version", value=True),
    "another-format": set_in_record("format", value="secateur-plan"),
    "unknown-key": set_in_record("run", value="rm"),
    "missing-key": without("tied"),
    "plan-of-another-architecture": plan_of_another_architecture,
    "plan-missing": set_in_record("plan", value=None),
    "plan-is-a-list": set_in_record("plan", value=[]),
    "plan-asks-for-terabytes": set_in_record("plan", "tensors", "conv.weight", "shape", value=[HUGE, HUGE, 3, 3]),
    "plan-of-a-negative-shape": set_in_record("plan", "tensors", "conv.weight", "shape", value=[-4, 3, 3, 3]),
    "index-out-of-range": set_in_record(*KEPT, value={"0": [0, 4]}),
    "index-negative": set_in_record(*KEPT, value={"0": [-1, 2]}),
    "index-twice": set_in_record(*KEPT, value={"0": [1, 1]}),
    "index-not-whole": set_in_record(*KEPT, value={"0": [0.5, 1]}),
    "index-beyond-64-bits": set_in_record(*KEPT, value={"0": [0, 1 << 70]}),
    "indices-out-of-order": set_in_record(*KEPT, value={"0": [2, 1]}),
    "indices-too-few": set_in_record(*KEPT, value={"0": [1]}),
    "indices-none": set_in_record(*KEPT, value={"0": []}),
    "list-that-is-not-there": set_in_record("plan", "lists", value={"layers": {"length": 2, "kept": [0]}}),
    "list-that-is-a-layer": set_in_record("plan", "lists", value={"conv": {"length": 2, "kept": [0]}}),
    "list-of-a-module-too-many": set_in_record("plan", "lists", value={"layers": {"length": 2, "kept": [0, 2]}}),
    "list-without-a-module": set_in_record("plan", "lists", value={"layers": {"length": 2, "kept": []}}),
    "axis-that-is-not-there": set_in_record(*KEPT, value={"9": [0, 1]}),
    "attribute-out-of-the-model": attribute_out_of_the_model,
    "folded-into-nothing": set_in_record("plan", "folded", value={"nothing": [1.0]}),
    "folded-into-another-shape": set_in_record("plan", "folded", value={"conv.weight": [1.0] * 4}),
    "folded-with-too-many-numbers": set_in_record("plan", "folded", value={"conv.bias": [1.0] * 5}),
    "folded-without-end": set_in_record("plan", "folded", value={"conv.bias": [1e999] * 4}),
    "folded-is-text": set_in_record("plan", "folded", value={"conv.bias": "1234"}),
    "same-outputs-not-yes-or-no": set_in_record("plan", "same_outputs", value="yes"),
    "file-outside-the-folder": set_in_record("files", "../../etc/passwd", value={"bytes": 1, "digest": "0" * 64}),
    "file-missing": set_in_record("files", "extras.safetensors", value={"bytes": 1, "digest": "0" * 64}),
    "file-of-negative-size": set_in_record("files", "extras.safetensors", value={"bytes": -1, "digest": "0" * 64}),
    "digest-not-one": set_in_record("files", "extras.safetensors", value={"bytes": 1, "digest": "../.."}),
    "architecture-asks-for-terabytes": set_in_record("architecture", "conv.weight", value=[HUGE, HUGE]),
    "architecture-of-a-million-axes": set_in_record("architecture", "conv.weight", value=[9] * 5000),
    "architecture-of-another-tensor": set_in_record("architecture", "intruder", value=[1]),
    "architecture-with-a-true-size": set_in_record("architecture", "conv.bias", value=[True]),
    "tied-to-itself": set_in_record("tied", value={"conv.bias": "conv.bias"}),
    "tied-in-a-circle": set_in_record("tied", value={"conv.bias": "norm.bias", "norm.bias": "conv.bias"}),
    "tied-to-nothing": set_in_record("tied", value={"conv.bias": "nothing"}),
    "tied-to-a-list": set_in_record("tied", value={"conv.bias": ["norm.bias"]}),
    "mask-asks-for-terabytes": set_in_record("masks", "layers", "conv.weight", "shape", value=[HUGE, HUGE]),
    "mask-with-more-zeros-than-weights": set_in_record("masks", "layers", "conv.weight", "zeros", value=HUGE),
    "mask-with-another-number-of-zeros": set_in_record("masks", "layers", "conv.weight", "zeros", value=3),
    "mask-of-nothing": set_in_record("masks", "layers", "nothing", value={"shape": [2], "zeros": 1}),
    "packed-without-a-mask": set_in_record("packed", value=["conv.bias"]),
    "packed-twice": set_in_record("packed", value=["conv.weight", "conv.weight"]),
    "packed-not-told": set_in_record("packed", value=[]),
    "name-of-many-lines": set_in_record("architecture", "one\ntwo\x1b[2J", value=[1]),
}


# In the weights, sealed again.


def header_set(name: str, key: str, value: Any) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        header = files.header
        header[name][key] = value
        files.with_header(json.dumps(header).encode())

    return change


def header_as(header: bytes, length: int | None = None) -> Callable[[Files], None]:
    return lambda files: files.with_header(header, length)


def overlapping(files: Files) -> None:
    header = files.header
    header["norm.bias"]["data_offsets"] = header["norm.weight"]["data_offsets"]
    files.with_header(json.dumps(header).encode())


def one_name_twice(files: Files) -> None:
    text = json.dumps(files.header)
    files.with_header((text[:-1] + "," + text[1:]).encode())


def tensor_left_out(files: Files) -> None:
    header = files.header
    del header["conv.bias"]
    files.with_header(json.dumps(header).encode())


def mask_as(changed: Callable[[int], int]) -> Callable[[Files], None]:
    """The mask of conv.weight as one number of 56 bits, of which the last two belong to no weight."""

    def change(files: Files) -> None:
        begin = 8 + int.from_bytes(files.weights[:8], "little")
        start, end = (begin + offset for offset in files.header[".mask.conv.weight"]["data_offsets"])
        mask = changed(int.from_bytes(files.weights[start:end], "big"))
        files.weights = files.weights[:start] + mask.to_bytes(7, "big") + files.weights[end:]

    return change


def appended(files: Files) -> None:
    files.weights += b"\0" * 64


def pickled_weights(files: Files) -> None:
    files.weights = pickle.dumps(Pickled(), protocol=0)


WEIGHTS: dict[str, Callable[[Files], None]] = {
    "header-of-exabytes": header_as(b"{}", 1 << 62),
    "header-longer-than-the-file": header_as(b"{}", 100_000),
    "header-deep": header_as(b'{"a":' + b"[" * 5000),
    "header-not-an-object": header_as(b"[]"),
    "header-not-json": header_as(b"\xff\xfe{}"),
    "header-empty": header_as(b""),
    "tensor-of-terabytes": header_set("conv.bias", "shape", [HUGE, HUGE]),
    "tensor-of-overflowing-shape": header_set("conv.bias", "shape", [1 << 33, 1 << 33, 0, 1 << 33]),
    "tensor-of-another-shape": header_set("conv.bias", "shape", [1, 2]),
    "tensor-of-unknown-dtype": header_set("conv.bias", "dtype", "O"),
    "tensor-with-a-list-as-dtype": header_set("conv.bias", "dtype", ["F32"]),
    "tensor-of-negative-offsets": header_set("conv.bias", "data_offsets", [-8, 0]),
    "tensor-beyond-the-file": header_set("conv.bias", "data_offsets", [HUGE, HUGE + 8]),
    "tensor-with-three-offsets": header_set("conv.bias", "data_offsets", [0, 8, 8]),
    "tensors-overlapping": overlapping,
    "tensor-left-out": tensor_left_out,
    "tensor-twice": one_name_twice,
    "bytes-appended": appended,
    "mask-with-a-bit-beyond-the-last-weight": mask_as(lambda mask: mask & (mask - 1) | 1),
    "mask-with-fewer-zeros-than-told": mask_as(lambda mask: mask & (mask - 1)),
    "mask-with-more-zeros-than-told": mask_as(lambda mask: (1 << 56) - 4),
    "pickle-as-weights": pickled_weights,
}


# As an accident would leave them: nothing is sealed again.


def without_sealing(files: Files) -> Iterator[tuple[str, tuple[bytes, bytes]]]:
    record, weights = files.raw_record, files.weights
    yield "record-cut-short", (record[: len(record) // 2], weights)
    yield "record-empty", (b"", weights)
    yield "record-flipped-bit", (record.replace(b'"zeros": 27', b'"zeros": 37'), weights)
    yield "record-deep", (b'{"format":' + b"[" * 20_000, weights)
    yield "record-of-deep-metrics", (b'{"metrics":' + b"[" * 900 + b"]" * 900 + b"}", weights)
    yield "record-with-a-key-twice", (record.replace(b'"packed"', b'"packed": [], "packed"'), weights)
    yield "record-not-an-object", (b"7", weights)
    yield "record-with-a-number-of-many-digits", (b'{"version": ' + b"9" * 10_000 + b"}", weights)
    yield "pickle-as-record", (pickle.dumps(Pickled(), protocol=0), weights)
    yield "weights-cut-short", (record, weights[:-1])
    yield "weights-empty", (record, b"")
    yield "weights-flipped-bit", (record, weights[:-3] + bytes([weights[-3] ^ 16]) + weights[-2:])


def attacks() -> Iterator[tuple[str, tuple[bytes, bytes]]]:
    whole = intact()
    yield from without_sealing(whole)
    for name, change in {**RECORDS, **WEIGHTS}.items():
        files = Files(whole.raw_record, whole.weights)
        change(files)
        yield name, files.sealed()


def main() -> None:
    shutil.rmtree(CORPUS, ignore_errors=True)
    for name, (record, weights) in attacks():
        folder = CORPUS / name
        folder.mkdir(parents=True)
        (folder / "secateur.json").write_bytes(record)
        (folder / "model.safetensors").write_bytes(weights)


if __name__ == "__main__":
    main()
