"""The header of a safetensors file, checked against the size of the file before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from secateur.checkpoint.strict_json import (
    MOST_BYTES,
    number_of_elements,
    parse_object,
    refusing_damage,
    require_keys,
    whole_number,
)

__all__ = ["DTYPES", "Entry", "parse_header", "read_header", "read_tensor"]

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
class Entry:
    """One tensor of the file, and the byte at which it begins."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int


def read_header(file: Path) -> dict[str, Entry]:
    size = file.stat().st_size
    with file.open("rb") as opened:
        head = opened.read(_LENGTH)
        length = int.from_bytes(head, "little")
        if length <= min(MOST_BYTES, size):
            head += opened.read(length)
    with refusing_damage(str(file)):
        return parse_header(head, size)


def parse_header(head: bytes, size: int) -> dict[str, Entry]:
    """From the first bytes of a file of that size. The tensors have to fill the file without a gap or an overlap."""
    length = int.from_bytes(head[:_LENGTH], "little")
    begin = _LENGTH + length
    if len(head) < _LENGTH or length > MOST_BYTES or begin > min(size, len(head)):
        raise ValueError("its header is longer than the file")
    header = parse_object(head[_LENGTH:begin])
    _check_metadata(header.pop("__metadata__", {}))
    places: list[tuple[int, int, str]] = []
    entries: dict[str, Entry] = {}
    for name, item in header.items():
        require_keys(item, {"dtype", "shape", "data_offsets"}, f"the entry of {name}")
        if item["dtype"] not in DTYPES:
            raise ValueError(f"{name} has an unknown dtype")
        dtype = DTYPES[item["dtype"]]
        start, end = map(whole_number, item["data_offsets"])
        if end - start != number_of_elements(item["shape"]) * dtype.itemsize:
            raise ValueError(f"the shape of {name} does not fit its bytes")
        places.append((start, end, name))
        entries[name] = Entry(dtype, tuple(item["shape"]), begin + start)
    reached = 0
    for start, end, name in sorted(places):
        if start != reached:
            raise ValueError(f"the bytes of {name} do not follow those of the tensor before")
        reached = end
    if begin + reached != size:
        raise ValueError(f"the file has {size:,} bytes, but its tensors end at {begin + reached:,}")
    return entries


def _check_metadata(metadata: object) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata are not text")


def read_tensor(file: Path, entry: Entry) -> Tensor:
    """Into memory of its own: a mapped file would change under the model when somebody overwrites it."""
    tensor = torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
    space = tensor.flatten().view(torch.uint8)
    with refusing_damage(str(file)), file.open("rb") as opened:
        opened.seek(entry.start)
        if opened.readinto(space.numpy().data) != len(space):
            raise ValueError("it ends too early")
        if entry.dtype == torch.bool and bool((space > 1).any()):
            raise ValueError("a boolean is neither true nor false")
    return tensor
