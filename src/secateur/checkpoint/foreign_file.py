"""The tensors in a file of `torch.save` whose objects are of classes that nobody here needs, and none of the objects.

Training programs put optimizers, callbacks, settings and whole models beside the weights or around them. Of all that
only names and descriptions are read; the bytes of a tensor are read when somebody asks for it.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from secateur.checkpoint.inert_pickle import Global, Made, Persistent, read_pickle

_PICKLE = "data.pkl"
_STORAGES = {
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
    "torch.ComplexDoubleStorage": torch.complex128,
    "torch.ComplexFloatStorage": torch.complex64,
}
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_OF_MODULES = ("_parameters", "_buffers", "_modules")
# Objects may hold one another in a circle, or twice each over many levels.
_DEEPEST = 40
_MOST_TENSORS = 100_000


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that has not been read yet."""

    key: str
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class ForeignFile:
    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._folder = next(n for n in archive.namelist() if n.endswith(f"/{_PICKLE}")).removesuffix(_PICKLE)
        self._bytes: dict[str, bytearray] = {}

    def contents(self) -> Any:
        if f"{self._folder}byteorder" in self._archive.namelist() and self._record("byteorder") != b"little":
            raise ValueError("its bytes are in another order")
        return read_pickle(self._record(_PICKLE))

    def tensor(self, stored: StoredTensor) -> Tensor:
        if not math.prod(stored.shape):
            return torch.empty(stored.shape, dtype=stored.dtype)
        if stored.key not in self._bytes:
            self._bytes[stored.key] = bytearray(self._record(f"data/{stored.key}"))
        whole = torch.frombuffer(self._bytes[stored.key], dtype=stored.dtype)
        return torch.as_strided(whole, stored.shape, stored.stride, stored.offset)  # which looks at the bounds

    def _record(self, name: str) -> bytes:
        found = self._archive.getinfo(self._folder + name)
        if found.compress_type != zipfile.ZIP_STORED:  # a few bytes would become as many as somebody likes
            raise ValueError("it is compressed")
        return self._archive.read(found)


def named_in(contents: Any) -> dict[str, Any]:
    """Every tensor in nested dicts, objects and modules by the way to it, and what modules keep as extra state."""
    found: dict[str, Any] = {}
    _collect(contents, (), found, 0)
    return found


def _collect(value: Any, way: tuple[str, ...], found: dict[str, Any], depth: int) -> None:
    if depth > _DEEPEST or len(found) > _MOST_TENSORS:
        raise ValueError("it holds tensors without end")
    described = _described(value) if isinstance(value, Made) else value
    if isinstance(described, Tensor | StoredTensor) or (way and way[-1].endswith("_extra_state")):
        found[".".join(way)] = described
    elif isinstance(described, Mapping):
        for key, item in described.items():
            if isinstance(key, str):
                _collect(item, way if key in _OF_MODULES else (*way, key), found, depth + 1)


def _described(made: Made) -> StoredTensor | Mapping[Any, Any]:
    path = made.by.path if isinstance(made.by, Global) else ""
    if path.startswith("torch._utils._rebuild_parameter"):
        return _described(made.args[0])
    if path == "torch._utils._rebuild_tensor_v2":
        storage, *where = made.args[:4]
        return _stored_tensor(storage, _STORAGES[storage.id[1].path], *where)
    if path == "torch._utils._rebuild_tensor_v3":  # of a dtype that has no storages of its own
        return _stored_tensor(made.args[0], _DTYPES[made.args[6].path], *made.args[1:4])
    return {**made.items, **made.state} if isinstance(made.state, dict) else made.items


def _stored_tensor(storage: Persistent, dtype: torch.dtype, offset: Any, shape: Any, stride: Any) -> StoredTensor:
    key = storage.id[2]
    if not isinstance(key, str) or not all(type(number) is int and number >= 0 for number in (offset, *shape, *stride)):
        raise ValueError("a tensor is described wrongly")
    return StoredTensor(key, dtype, offset, tuple(shape), tuple(stride))
