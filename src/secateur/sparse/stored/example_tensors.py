"""Example inputs as JSON: their structure, and of each tensor what a graph depends on, its shape and dtype."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from secateur.base import Shape, UsageError, from_json
from secateur.checkpoint import DTYPES

_NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in DTYPES.values()}
_NAMED = {name: dtype for dtype, name in _NAMES.items()}
_MOST_ELEMENTS = 1 << 40


def written_examples(value: Any) -> dict[str, Any]:
    if isinstance(value, Tensor) and value.dtype in _NAMES:
        return {"tensor": list(value.shape), "dtype": _NAMES[value.dtype]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [written_examples(item) for item in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: written_examples(item) for key, item in value.items()}}
    if value is None or type(value) in (bool, int, float, str):
        return {"value": value}
    raise UsageError(
        f"The engine was made for a {type(value).__name__} among its inputs, which cannot be saved; make it with "
        "tensors, numbers and text, in lists, tuples and dicts."
    )


def read_examples(found: Any) -> Any:
    """Tensors come on the meta device: whatever their size, they take no memory."""
    match found:
        case {"tensor": stored, "dtype": str(name)} if len(found) == 2 and name in _NAMED:
            shape = from_json(Shape, stored)
            if prod(shape) > _MOST_ELEMENTS:
                raise ValueError("an example input asks for terabytes")
            return torch.empty(shape, dtype=_NAMED[name], device="meta")
        case {"list": list(items)} if len(found) == 1:
            return [read_examples(item) for item in items]
        case {"tuple": list(items)} if len(found) == 1:
            return tuple(read_examples(item) for item in items)
        case {"dict": dict(items)} if len(found) == 1:
            return {key: read_examples(item) for key, item in items.items()}
        case {"value": None | bool() | int() | float() | str() as value} if len(found) == 1:
            return value
    raise ValueError("an example input is none")
