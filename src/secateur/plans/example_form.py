"""The form of example inputs: shapes, dtypes and ranges, but no values. A file of a plan holds it instead of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from secateur.base import Shape, from_json, to_json

Form: TypeAlias = Any
"""Plain JSON: {"tensor": …}, {"list": […]}, {"tuple": […]}, {"dict": {…}}, or a number, text, boolean or null."""

_MOST_NUMBERS = 1 << 24
_DEEPEST = 8
_WIDEST_RANGE = 1 << 31


@dataclass(frozen=True)
class _TensorForm:
    shape: Shape
    dtype: Literal[
        "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
        "bool", "uint8", "int8", "int16", "int32", "int64",
    ]  # fmt: skip
    low: int
    """Of whole numbers, such as the smallest index into an embedding; else 0."""
    high: int

    def __post_init__(self) -> None:
        if math.prod(self.shape) > _MOST_NUMBERS:
            raise ValueError(f"a tensor of shape {self.shape} is too large for an example")
        kind = self.torch_dtype
        whole = not (kind.is_floating_point or kind.is_complex or kind == torch.bool)
        least, most = (torch.iinfo(kind).min, torch.iinfo(kind).max) if whole else (0, 1)
        if not max(least, -_WIDEST_RANGE) <= self.low <= self.high <= min(most, _WIDEST_RANGE):
            raise ValueError(f"{self.low} to {self.high} is no range of {self.dtype}")

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)  # type: ignore[no-any-return]

    @staticmethod
    def of(tensor: Tensor) -> _TensorForm:
        low, high = 0, 0
        if tensor.numel() and not (tensor.is_floating_point() or tensor.is_complex() or tensor.is_meta):
            low, high = (int(value.clamp(-_WIDEST_RANGE, _WIDEST_RANGE)) for value in tensor.long().aminmax())
        return from_json(_TensorForm, _plain(tensor, low, high))

    def filled(self, device: torch.device) -> Tensor:
        """Whole numbers rise from the lowest to the highest along the last axis, as positions and offsets do."""
        kind = self.torch_dtype
        if kind.is_floating_point or kind.is_complex:
            generator = torch.Generator().manual_seed(0)
            return torch.randn(self.shape, generator=generator).to(device, kind)
        steps = torch.arange(self.shape[-1] if self.shape else 1)
        values = self.low + steps * (self.high - self.low) // max(1, len(steps) - 1)
        return (values.expand(self.shape) if self.shape else values[0]).contiguous().to(device, kind)


def _plain(tensor: Tensor, low: int, high: int) -> dict[str, Any]:
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."), "low": low, "high": high}


def form_of(inputs: Any) -> Form | None:
    """None where they hold something else than tensors, numbers and text, or too much."""
    try:
        return read_form(_form(inputs))
    except (ValueError, RuntimeError):  # the second: of tensors that are none of the usual ones
        return None


def _form(value: Any) -> Form:
    if isinstance(value, Tensor):
        return {"tensor": to_json(_TensorForm.of(value))}
    if isinstance(value, Mapping):
        return {"dict": {key: _form(item) for key, item in value.items()}}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_form(item) for item in value]}
    return value


def read_form(stored: Any) -> Form | None:
    """What `form_of` made, checked."""
    tensors: list[_TensorForm] = []
    if stored is not None:
        _walk(stored, tensors.append)
    if sum(math.prod(form.shape) for form in tensors) > _MOST_NUMBERS:
        raise ValueError("the example inputs are too large")
    return stored


def inputs_of_form(form: Form, device: torch.device) -> Any:
    """Inputs of that form, the same ones every time."""
    return _walk(form, lambda tensor: tensor.filled(device))


def _walk(form: Any, leaf: Callable[[_TensorForm], Any], depth: int = 0) -> Any:
    if form is None or ((type(form) in (bool, int, str) or (type(form) is float and math.isfinite(form))) and depth):
        return form
    if type(form) is not dict or len(form) != 1 or depth > _DEEPEST:
        raise ValueError("that is no form of example inputs")
    ((kind, content),) = form.items()
    match kind, content:
        case "tensor", dict():
            return leaf(from_json(_TensorForm, content))
        case "list" | "tuple", list():
            items = [_walk(item, leaf, depth + 1) for item in content]
            return items if kind == "list" else tuple(items)
        case "dict", dict():
            if not all(type(key) is str for key in content):
                raise ValueError("not all names of arguments are text")
            return {key: _walk(item, leaf, depth + 1) for key, item in content.items()}
    raise ValueError("that is no form of example inputs")
