"""Opens a checkpoint: every file is checked against the others before anything of the model's size is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from secateur.checkpoint.exchange import read_record, whole_file
from secateur.checkpoint.header import Entry, read_header, read_tensor
from secateur.checkpoint.manifest import EXTRAS_FILE, WEIGHTS_FILE, Record
from secateur.checkpoint.packing import unpack
from secateur.checkpoint.strict_json import number_of_elements, refusing_damage
from secateur.plans import Masks, Plan, checked_layer

__all__ = ["ATTRIBUTE", "BUFFER", "EXTRA_STATE", "MASK", "Checkpoint", "Opened", "check_tensors", "read_checkpoint"]

# What is not a tensor of the state dict is stored with a prefix. No module or parameter may have an empty name, so
# nothing else begins with a point.
MASK, BUFFER, ATTRIBUTE, EXTRA_STATE = ".mask.", ".buffer.", ".attribute.", ".extra_state."

Entries = Mapping[str, Entry]


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint tells without the model: how it was pruned, and what was noted about it."""

    plan: Plan | None
    """All cuts as one plan for the full-size model; None if no channel was removed."""
    masks: Masks | None
    """The weights that are zero for good; None if there are none."""
    architecture: Mapping[str, tuple[int, ...]]
    """The shapes of the full-size model's parameters and persistent buffers."""
    metrics: Any
    """What `save` was given as metrics, as JSON values."""
    settings: Any
    """What `save` was given as settings, as JSON values."""
    versions: Mapping[str, str]
    """Of secateur, torch and Python when it was saved."""
    not_from_pretrained: str | None
    """Why the `from_pretrained` of transformers cannot load the folder; None where it can."""


def read_checkpoint(folder: str | Path) -> Checkpoint:
    """Reads what is in a checkpoint besides the weights. No code runs, and nothing of the model's size is allocated.

    Args:
        folder: that `secateur.save` or a run of `secateur.prune` wrote. One that is damaged is refused in one sentence.
    """
    opened = Opened(Path(folder))
    record = opened.record
    return Checkpoint(
        record.plan,
        opened.masks,
        record.architecture,
        record.metrics,
        record.settings,
        record.versions,
        record.not_from_pretrained,
    )


class Opened:
    """A checkpoint whose files are whole and fit together. Tensors are read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.record = read_record(folder)
        self._files = {name: whole_file(folder, name, stored) for name, stored in self.record.files.items()}
        self._entries = {name: read_header(file) for name, file in self._files.items()}
        with refusing_damage(str(folder)):
            check_tensors(self.record, self._entries[WEIGHTS_FILE], self._entries.get(EXTRAS_FILE, {}))
            self.masks = self._read_masks()

    def _read_masks(self) -> Masks | None:
        described = self.record.masks
        if described is None:
            return None
        homes = {name: WEIGHTS_FILE if name in self.record.packed else EXTRAS_FILE for name in described["layers"]}
        layers = {
            name: checked_layer(name, layer, self._read(homes[name], MASK + name).numpy())
            for name, layer in described["layers"].items()
        }
        return Masks.from_json(described, layers)

    def weight(self, name: str) -> Tensor:
        """A tensor of the state dict, by the name it is stored under, its zeros put back."""
        stored = self._read(WEIGHTS_FILE, name)
        mask = next((mask for mask in self.record.packed if self.record.stored_name(mask) == name), None)
        if mask is None:
            return stored
        assert self.masks is not None
        return unpack(stored, self.masks.layers[mask])

    def extra(self, name: str, like: Tensor | None = None) -> Tensor | None:
        """What a state dict leaves out, if it was stored, and in the shape of `like`."""
        entry = self._entries.get(EXTRAS_FILE, {}).get(name)
        if entry is None or (like is not None and tuple(like.shape) != entry.shape):
            return None
        return self._read(EXTRAS_FILE, name)

    def _read(self, file: str, name: str) -> Tensor:
        return read_tensor(self._files[file], self._entries[file][name])


def check_tensors(record: Record, weights: Entries, extras: Entries) -> None:
    """Every tensor that the record speaks of is there, in its shape, and no other."""
    layers = record.masks["layers"] if record.masks else {}
    expected = {name: record.pruned_shape(name) for name in record.architecture if name not in record.tied}
    bits = {MASK + name: ((number_of_elements(layer["shape"]) + 7) // 8,) for name, layer in layers.items()}
    for name in record.packed:
        layer = layers[name]
        expected[record.stored_name(name)] = (number_of_elements(layer["shape"]) - layer["zeros"],)
        expected[MASK + name] = bits.pop(MASK + name)
    _require_shapes({name: entry.shape for name, entry in weights.items()}, expected)
    _require_shapes({name: entry.shape for name, entry in extras.items() if name.startswith(MASK)}, bits)
    for name, entry in [*weights.items(), *extras.items()]:
        if name.startswith(MASK) and entry.dtype != torch.uint8:
            raise ValueError(f"the bits of {name[len(MASK) :]} are not bytes")
    for name in extras:
        if not name.startswith((MASK, BUFFER, ATTRIBUTE, EXTRA_STATE)):
            raise ValueError(f"{name} has no place in {EXTRAS_FILE}")


def _require_shapes(found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> None:
    for name in sorted({*found, *expected}):
        if name not in expected:
            raise ValueError(f"it holds {name}, which the architecture lacks")
        if found.get(name) != expected[name]:
            raise ValueError(f"it holds {name} as {found.get(name, 'nothing')}, where {expected[name]} belongs")
