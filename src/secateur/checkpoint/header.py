"""The header of a safetensors file, checked against the size of the file before anything is allocated."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, BinaryIO

import torch
from torch import Tensor

from secateur.base import MOST_BYTES, Count, Must, Shape, from_json, parse_json, refusing_damage

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}

_LENGTH = 8
"""Bytes at the start of the file that say how long the header is."""


@dataclass(frozen=True)
class _StoredEntry:
    """As the header has it."""

    dtype: Annotated[str, Must(DTYPES.__contains__, "is an unknown dtype")]
    shape: Shape
    data_offsets: tuple[Count, Count]


@dataclass(frozen=True)
class Entry:
    """One tensor of the file, and the byte at which it begins."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int


def read_header(opened: BinaryIO) -> dict[str, Entry]:
    size = os.fstat(opened.fileno()).st_size
    opened.seek(0)
    head = opened.read(_LENGTH)
    length = int.from_bytes(head, "little")
    if length <= min(MOST_BYTES, size):
        head += opened.read(length)
    with refusing_damage(str(opened.name)):
        return parse_header(head, size)


def parse_header(head: bytes, size: int) -> dict[str, Entry]:
    """From the first bytes of a file of that size. The tensors have to fill the file without a gap or an overlap."""
    length = int.from_bytes(head[:_LENGTH], "little")
    begin = _LENGTH + length
    if len(head) < _LENGTH or length > MOST_BYTES or begin > min(size, len(head)):
        raise ValueError("its header is longer than the file")
    header = from_json(dict[str, Any], parse_json(head[_LENGTH:begin]))
    from_json(dict[str, str], header.pop("__metadata__", {}), "the metadata")
    places: list[tuple[int, int, str]] = []
    entries: dict[str, Entry] = {}
    for name, item in from_json(dict[str, _StoredEntry], header).items():
        start, end = item.data_offsets
        if end - start != prod(item.shape) * DTYPES[item.dtype].itemsize:
            raise ValueError(f"the shape of {name} does not fit its bytes")
        places.append((start, end, name))
        entries[name] = Entry(DTYPES[item.dtype], item.shape, begin + start)
    reached = 0
    for start, end, name in sorted(places):
        if start != reached:
            raise ValueError(f"the bytes of {name} do not follow those of the tensor before")
        reached = end
    if begin + reached != size:
        raise ValueError(f"the file has {size:,} bytes, but its tensors end at {begin + reached:,}")
    return entries


def read_tensor(opened: BinaryIO, entry: Entry) -> Tensor:
    """Into memory of its own: a mapped file would change under the model when somebody overwrites it."""
    tensor = torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
    space = tensor.flatten().view(torch.uint8)
    with refusing_damage(str(opened.name)):
        opened.seek(entry.start)
        if opened.readinto(space.numpy().data) != len(space):  # type: ignore[attr-defined]
            raise ValueError("it ends too early")
        if entry.dtype == torch.bool and bool((space > 1).any()):
            raise ValueError("a boolean is neither true nor false")
    return tensor
