"""A saved engine to read: its files are checked against each other before anything of their size is allocated."""

from __future__ import annotations

from typing import BinaryIO

import torch
from torch import Tensor

from secateur.checkpoint import read_header, read_tensor
from secateur.sparse.stored.engine_manifest import EngineManifest


class OpenedEngine:
    """An engine whose files are whole. Tensors are read when they are asked for."""

    def __init__(self, manifest: EngineManifest, file: BinaryIO) -> None:
        self.manifest = manifest
        self.file = file
        self._entries = read_header(file)
        self._tensors: dict[str, Tensor] = {}

    def holds(self, name: str, like: Tensor) -> bool:
        """Whether a tensor of this shape and dtype is there, by any of its names."""
        entry = self._entries.get(self._stored(name))
        return entry is not None and (entry.shape, entry.dtype) == (tuple(like.shape), like.dtype)

    def tensor(self, name: str) -> Tensor:
        """The same for all of its names."""
        stored = self._stored(name)
        if stored not in self._entries:
            raise ValueError(f"it lacks {name}")
        if stored not in self._tensors:
            self._tensors[stored] = self._read(stored)
        return self._tensors[stored]

    @property
    def unread(self) -> set[str]:
        return set(self._entries) - set(self._tensors)

    def _read(self, stored: str) -> Tensor:
        tensor = read_tensor(self.file, self._entries[stored])
        if stored not in self.manifest.channels_last:
            return tensor
        if tensor.ndim != 4:
            raise ValueError(f"{stored} has no channels to be last")
        return torch.empty_like(tensor, memory_format=torch.channels_last).copy_(tensor)

    def _stored(self, name: str) -> str:
        return self.manifest.tied.get(name, name)
