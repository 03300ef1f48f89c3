"""What `secateur.json` says: all about the pruned model but the numbers in it. Checked to the last field when read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from secateur.base import FileFormat, Shape
from secateur.checkpoint.sealed import SealedManifest, StoredFile
from secateur.plans import DescribedMasks, Plan

MANIFEST_FILE = "secateur.json"
WEIGHTS_FILE = "model.safetensors"
EXTRAS_FILE = "extras.safetensors"


@dataclass(frozen=True)
class Manifest(SealedManifest):
    """The contents of `secateur.json`."""

    _file_format: ClassVar = FileFormat("secateur-checkpoint", 1, "checkpoint", "secateur.save")
    file_name: ClassVar = MANIFEST_FILE
    beside_it: ClassVar = (WEIGHTS_FILE, EXTRAS_FILE)

    files: Mapping[str, StoredFile]
    architecture: Mapping[str, Shape]
    """The shapes of the full-size model's parameters and persistent buffers, by every name they have."""
    tied: Mapping[str, str]
    """For a tensor with several names, each further name and the one that it is stored under."""
    plan: Plan | None
    masks: DescribedMasks | None
    """The bits are in the safetensors files."""
    packed: tuple[str, ...]
    """The masks whose weights are stored without their zeros."""
    metrics: Any
    settings: Any
    versions: Mapping[str, str]
    not_from_pretrained: str | None
    """Why transformers cannot load the folder; None where it can."""

    def __post_init__(self) -> None:
        # The names are known beforehand, so a manifest can lead to no other file.
        if not {WEIGHTS_FILE} <= self.files.keys() <= {WEIGHTS_FILE, EXTRAS_FILE}:
            raise ValueError(f"the files are not {WEIGHTS_FILE} and, at most, {EXTRAS_FILE}")
        self._require_agreement()

    @property
    def file_bytes(self) -> int:
        """Of the weights as they are stored."""
        return self.files[WEIGHTS_FILE].bytes

    def stored_files(self) -> Mapping[str, StoredFile]:
        return self.files

    def stored_name(self, name: str) -> str:
        return self.tied.get(name, name)

    def pruned_shape(self, name: str) -> tuple[int, ...]:
        """Of a stored tensor, after the cut, when it has this name."""
        before = self.plan.name_before(name) if self.plan else name
        cut = self.plan.tensors.get(before) if self.plan else None
        return cut.new_shape if cut else self.architecture[before]

    @property
    def stored_names(self) -> list[str]:
        """Of the tensors that are left after the cut, each once."""
        after = map(self.plan.name_after, self.architecture) if self.plan else iter(self.architecture)
        return [name for name in after if name is not None and name not in self.tied]

    def _require_agreement(self) -> None:
        """Plan, masks and tied names speak of tensors that the architecture has, and of the shapes it has them in."""
        layers = self.masks.layers if self.masks else {}
        unknown = {*self.tied, *self.tied.values(), *layers} - set(self.architecture)
        if unknown:
            raise ValueError(f"the architecture has no {min(unknown)}")
        for alias, name in self.tied.items():
            if name in self.tied or self.architecture[alias] != self.architecture[name]:
                raise ValueError(f"{alias} cannot be tied to {name}")
        for name, cut in self.plan.tensors.items() if self.plan else ():
            if name in self.tied or self.architecture.get(name, cut.shape) != cut.shape:
                raise ValueError(f"the plan cuts {name}, which the architecture has in another shape")
        for name, layer in layers.items():
            if layer.shape != self.pruned_shape(self.stored_name(name)):
                raise ValueError(f"the mask of {name} has another shape than the weight")
        unpacked = [self.stored_name(name) for name in self.packed]
        if not set(self.packed) <= set(layers) or len(set(unpacked)) < len(unpacked):
            raise ValueError("a weight is packed without a mask, or twice")
