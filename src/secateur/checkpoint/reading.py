"""Opens a checkpoint: every file is checked against the others before anything of the model's size is allocated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secateur.base import refusing_damage
from secateur.checkpoint.exchange import whole_files
from secateur.checkpoint.header import Entry, read_header, read_tensor
from secateur.checkpoint.manifest import EXTRAS_FILE, WEIGHTS_FILE, Manifest
from secateur.checkpoint.packing import unpack
from secateur.checkpoint.tensors import ATTRIBUTE, BUFFER, EXTRA_STATE, MASK
from secateur.plans import Masks, Plan

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
    file_bytes: int
    """Of the weights as they are stored."""
    not_from_pretrained: str | None
    """Why the `from_pretrained` of transformers cannot load the folder; None where it can."""


def read_checkpoint(folder: str | Path) -> Checkpoint:
    """Reads what is in a checkpoint besides the weights. No code runs, and nothing of the model's size is allocated.

    Args:
        folder: that `secateur.save` or a run of `secateur.prune` wrote. One that is damaged is refused in one sentence.
    """
    with open_checkpoint(Path(folder)) as opened:
        told = {each.name: getattr(opened.manifest, each.name) for each in fields(Checkpoint)}
        return Checkpoint(**{**told, "masks": opened.masks})


@contextmanager
def open_checkpoint(folder: Path) -> Iterator[Opened]:
    with whole_files(folder, Manifest) as (manifest, files):
        yield Opened(folder, manifest, files)


class Opened:
    """A checkpoint whose files are whole and fit together. Tensors are read when they are asked for."""

    def __init__(self, folder: Path, manifest: Manifest, files: Mapping[str, BinaryIO]) -> None:
        self.folder = folder
        self.manifest = manifest
        self._files = files
        self._entries = {name: read_header(file) for name, file in files.items()}
        with refusing_damage(folder):
            check_tensors(self.manifest, self._entries[WEIGHTS_FILE], self._entries.get(EXTRAS_FILE, {}))
            self.masks = self.manifest.masks.with_bits(self._bits) if self.manifest.masks else None

    def _bits(self, name: str) -> NDArray[np.uint8]:
        file = WEIGHTS_FILE if name in self.manifest.packed else EXTRAS_FILE
        return self._read(file, MASK + name).numpy()

    def weight(self, name: str) -> Tensor:
        """A tensor of the state dict, by the name it is stored under, its zeros put back."""
        stored = self._read(WEIGHTS_FILE, name)
        mask = next((mask for mask in self.manifest.packed if self.manifest.stored_name(mask) == name), None)
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


def check_tensors(manifest: Manifest, weights: Entries, extras: Entries) -> None:
    """Every tensor that the manifest speaks of is there, in its shape, and no other."""
    layers = manifest.masks.layers if manifest.masks else {}
    expected = {name: manifest.pruned_shape(name) for name in manifest.stored_names}
    bits = {MASK + name: (layer.bytes_of_bits,) for name, layer in layers.items()}
    for name in manifest.packed:
        expected[manifest.stored_name(name)] = (layers[name].weights - layers[name].zeros,)
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
