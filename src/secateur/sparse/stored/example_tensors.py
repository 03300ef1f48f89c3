"""Example inputs as JSON: their structure, and of each tensor what a graph depends on, its shape and dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from secateur.base import UsageError
from secateur.checkpoint import DTYPES, number_of_elements, require_keys

__all__ = ["from_json", "to_json"]

_NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in DTYPES.values()}
_NAMED = {name: dtype for dtype, name in _NAMES.items()}
_MOST_ELEMENTS = 1 << 40


def to_json(value: Any) -> dict[str, Any]:
    if isinstance(value, Tensor) and value.dtype in _NAMES:
        return {"tensor": list(value.shape), "dtype": _NAMES[value.dtype]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [to_json(item) for item in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: to_json(item) for key, item in value.items()}}
    if value is None or type(value) in (bool, int, float, str):
        return {"value": value}
    raise UsageError(
        f"The engine was made for a {type(value).__name__} among its inputs, which cannot be saved; make it with "
        "tensors, numbers and text, in lists, tuples and dicts."
    )


def from_json(found: Any) -> Any:
    """Tensors come on the meta device: whatever their size, they take no memory."""
    if isinstance(found, dict) and "tensor" in found:
        require_keys(found, {"tensor", "dtype"}, "an example input")
        if number_of_elements(found["tensor"]) > _MOST_ELEMENTS:
            raise ValueError("an example input asks for terabytes")
        return torch.empty(found["tensor"], dtype=_NAMED[found["dtype"]], device="meta")
    ((kind, value),) = found.items()
    if kind in ("list", "tuple") and type(value) is list:
        items = [from_json(item) for item in value]
        return items if kind == "list" else tuple(items)
    if kind == "dict" and type(value) is dict:
        return {key: from_json(item) for key, item in value.items()}
    if kind == "value" and (value is None or type(value) in (bool, int, float, str)):
        return value
    raise ValueError("an example input is none")
