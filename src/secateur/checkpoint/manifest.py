"""What `secateur.json` says: all about the pruned model but the numbers in it. Checked to the last field when read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from secateur.base import UsageError
from secateur.checkpoint.sealed import seal, unseal
from secateur.checkpoint.strict_json import MOST_BYTES, number_of_elements, refusing_damage, require_keys, whole_number
from secateur.plans import Plan

__all__ = [
    "EXTRAS_FILE",
    "RECORD_FILE",
    "WEIGHTS_FILE",
    "Record",
    "StoredFile",
    "checked_names",
    "checked_shapes",
    "checked_texts",
    "parse_record",
    "parse_stored_file",
]

RECORD_FILE = "secateur.json"
WEIGHTS_FILE = "model.safetensors"
EXTRAS_FILE = "extras.safetensors"

_FORMAT = "secateur-checkpoint"
_VERSION = 1
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class StoredFile:
    """By which a file is known to be the one that the record was written with."""

    bytes: int
    digest: str


@dataclass(frozen=True)
class Record:
    """The contents of `secateur.json`."""

    files: Mapping[str, StoredFile]
    architecture: Mapping[str, tuple[int, ...]]
    """The shapes of the full-size model's parameters and persistent buffers, by every name they have."""
    tied: Mapping[str, str]
    """For a tensor with several names, each further name and the one that it is stored under."""
    plan: Plan | None
    masks: Mapping[str, Any] | None
    """What `Masks.to_json` gives; the bits are in the safetensors files."""
    packed: tuple[str, ...]
    """The masks whose weights are stored without their zeros."""
    metrics: Any
    settings: Any
    versions: Mapping[str, str]
    not_from_pretrained: str | None
    """Why transformers cannot load the folder; None where it can."""

    def to_bytes(self) -> bytes:
        contents = {
            "files": {name: asdict(file) for name, file in self.files.items()},
            "architecture": {name: list(shape) for name, shape in self.architecture.items()},
            "tied": dict(self.tied),
            "plan": self.plan.to_json() if self.plan else None,
            "masks": self.masks,
            "packed": list(self.packed),
            "metrics": self.metrics,
            "settings": self.settings,
            "versions": dict(self.versions),
            "not_from_pretrained": self.not_from_pretrained,
        }
        raw = seal(contents, _FORMAT, _VERSION)
        if len(raw) > MOST_BYTES:
            raise UsageError(f"The plan, metrics and settings take {len(raw):,} bytes of JSON; give fewer metrics.")
        return raw

    def stored_name(self, name: str) -> str:
        return self.tied.get(name, name)

    def pruned_shape(self, name: str) -> tuple[int, ...]:
        """Of a stored tensor, after the cut."""
        cut = self.plan.tensors.get(name) if self.plan else None
        return cut.new_shape if cut else self.architecture[name]


def parse_record(raw: bytes, source: str = RECORD_FILE) -> Record:
    with refusing_damage(source):
        otherwise = "not a checkpoint; give a folder that secateur.save wrote"
        contents = unseal(raw, _FORMAT, _VERSION, source=source, otherwise=otherwise)
        require_keys(contents, set(Record.__dataclass_fields__), "the record")
        record = Record(
            files=_checked_files(contents["files"]),
            architecture=checked_shapes(contents["architecture"]),
            tied=checked_texts(contents["tied"], "tied"),
            plan=None if contents["plan"] is None else Plan.from_json(contents["plan"]),
            masks=None if contents["masks"] is None else _checked_masks(contents["masks"]),
            packed=checked_names(contents["packed"]),
            metrics=contents["metrics"],
            settings=contents["settings"],
            versions=checked_texts(contents["versions"], "versions"),
            not_from_pretrained=_text_or_none(contents["not_from_pretrained"]),
        )
        _check_agreement(record)
        return record


def _check_agreement(record: Record) -> None:
    """Plan, masks and tied names speak of tensors that the architecture has, and of the shapes it has them in."""
    layers = record.masks["layers"] if record.masks else {}
    unknown = {*record.tied, *record.tied.values(), *layers} - set(record.architecture)
    if unknown:
        raise ValueError(f"the architecture has no {min(unknown)}")
    for alias, name in record.tied.items():
        if name in record.tied or record.architecture[alias] != record.architecture[name]:
            raise ValueError(f"{alias} cannot be tied to {name}")
    for name, cut in record.plan.tensors.items() if record.plan else ():
        if name in record.tied or record.architecture.get(name, cut.shape) != cut.shape:
            raise ValueError(f"the plan cuts {name}, which the architecture has in another shape")
    for name, layer in layers.items():
        if tuple(layer["shape"]) != record.pruned_shape(record.stored_name(name)):
            raise ValueError(f"the mask of {name} has another shape than the weight")
    unpacked = [record.stored_name(name) for name in record.packed]
    if not set(record.packed) <= set(layers) or len(set(unpacked)) < len(unpacked):
        raise ValueError("a weight is packed without a mask, or twice")


def _checked_files(files: Any) -> dict[str, StoredFile]:
    """The names are known beforehand, so a record can lead to no other file."""
    if not isinstance(files, dict) or WEIGHTS_FILE not in files or not set(files) <= {WEIGHTS_FILE, EXTRAS_FILE}:
        raise ValueError(f"the files are not {WEIGHTS_FILE} and, at most, {EXTRAS_FILE}")
    return {name: parse_stored_file(file) for name, file in files.items()}


def parse_stored_file(file: Any) -> StoredFile:
    require_keys(file, {"bytes", "digest"}, "a file")
    if not isinstance(file["digest"], str) or not _DIGEST.fullmatch(file["digest"]):
        raise ValueError("a digest is not one")
    return StoredFile(whole_number(file["bytes"]), file["digest"])


def checked_shapes(shapes: Any) -> dict[str, tuple[int, ...]]:
    if not isinstance(shapes, dict):
        raise ValueError("the architecture is not an object")
    for shape in shapes.values():
        number_of_elements(shape)
    return {name: tuple(shape) for name, shape in shapes.items()}


def _checked_masks(masks: Any) -> dict[str, Any]:
    require_keys(masks, {"scope", "pattern", "score", "layers", "left_alone"}, "the masks")
    for layer in masks["layers"].values():
        require_keys(layer, {"shape", "zeros"}, "a mask")
        if whole_number(layer["zeros"]) > number_of_elements(layer["shape"]):
            raise ValueError("a mask has more zeros than weights")
    for item in masks["left_alone"]:
        require_keys(item, {"name", "reason"}, "a weight left alone")
        checked_texts(item, "a weight left alone")
    checked_names([masks["scope"], masks["score"]])
    _text_or_none(masks["pattern"])
    return dict(masks)


def checked_texts(texts: Any, where: str) -> dict[str, str]:
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ValueError(f"{where} holds something other than text")
    return texts


def checked_names(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("a name is not text")
    return tuple(names)


def _text_or_none(text: Any) -> str | None:
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{str(text)[:40]} is not text")
    return text
