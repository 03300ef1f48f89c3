"""What is known of tensors, by the tensor itself, for as long as it lives."""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import ref

from torch import Tensor

T = TypeVar("T")


class TensorTable(Generic[T]):
    """Goes by identity, and keeps no tensor alive. torch's own table asks ten times as long, at every argument."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ref[Tensor], T]] = {}

    def __setitem__(self, tensor: Tensor, item: T) -> None:
        self._known[id(tensor)] = ref(tensor), item

    def get(self, tensor: Tensor) -> T | None:
        known = self._known.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None  # another may have had its identity
