"""The tensors that a model holds: those of its state dict, and those that a state dict leaves out."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from secateur.base import UsageError, named_tensors

# What is not a tensor of the state dict is stored with a prefix. No module or parameter may have an empty name, so
# nothing else begins with a point.
MASK, BUFFER, ATTRIBUTE, EXTRA_STATE = ".mask.", ".buffer.", ".attribute.", ".extra_state."

_REGISTERED = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True)
class ModelTensors:
    """The tensors of a model by every name they have."""

    state: Mapping[str, Tensor]
    """Parameters and persistent buffers."""
    buffers: Mapping[str, Tensor]
    """Buffers that are not persistent, such as tables of positions."""
    attributes: Mapping[str, Tensor]
    """Tensors that modules hold without registering them, alone or in lists, tuples and dicts."""

    @property
    def extras(self) -> dict[str, Tensor]:
        """What a state dict leaves out, by the names that it is stored under."""
        buffers = {BUFFER + name: tensor for name, tensor in self.buffers.items()}
        return buffers | {ATTRIBUTE + name: tensor for name, tensor in self.attributes.items()}

    @property
    def by_stored_name(self) -> dict[str, Tensor]:
        return {**self.state, **self.extras}


def tensors_of(model: nn.Module) -> ModelTensors:
    tensors = named_tensors(model)
    for name, tensor in tensors.items():
        if is_lazy(tensor):
            raise UsageError(f"{name} is not initialised yet; run the model once on an example first.")
    passing = {
        f"{path}.{key}" if path else key
        for path, module in model.named_modules(remove_duplicate=False)
        for key in module._non_persistent_buffers_set
    }
    registered = {id(tensor) for tensor in tensors.values()}
    attributes = {
        name: tensor
        for path, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in _REGISTERED
        for name, tensor in _tensors_within(value, f"{path}.{key}" if path else key)
        if id(tensor) not in registered
    }
    return ModelTensors(
        state={name: tensor for name, tensor in tensors.items() if name not in passing},
        buffers={name: tensor for name, tensor in tensors.items() if name in passing},
        attributes=attributes,
    )


def tied_names(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """For each further name of a tensor its first, whether modules share the tensor or only its memory."""
    first: dict[object, str] = {}
    names = {name: first.setdefault(_memory(tensor), name) for name, tensor in tensors.items()}
    return {name: own for name, own in names.items() if name != own}


def _memory(tensor: Tensor) -> object:
    if tensor.device.type == "meta" or type(tensor.data) is not Tensor or tensor.layout != torch.strided:
        return id(tensor)
    if tensor.numel() == 0:
        return id(tensor)
    return tensor.data_ptr(), tensor.device, tuple(tensor.shape), tensor.stride(), tensor.dtype


def _tensors_within(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, list | tuple | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            if isinstance(key, str | int):
                yield from _tensors_within(item, f"{name}.{key}")


def replace_tensors(model: nn.Module, replacements: Mapping[int, Tensor]) -> None:
    """Puts other tensors in the places of those with these ids, wherever a module holds them."""
    for module in model.modules():
        held: dict[str, Any] = vars(module)
        for registry in (module._parameters, module._buffers):
            for key, tensor in registry.items():
                if id(tensor) in replacements:
                    registry[key] = replacements[id(tensor)]  # type: ignore[assignment]
        for key in [key for key in held if key not in _REGISTERED]:
            held[key] = _with_replaced(held[key], replacements)


def _with_replaced(value: Any, replacements: Mapping[int, Tensor]) -> Any:
    """Lists and dicts change in place, because others may hold them, too."""
    if isinstance(value, Tensor):
        return replacements.get(id(value), value)
    if isinstance(value, list):
        value[:] = [_with_replaced(item, replacements) for item in value]
    elif isinstance(value, dict):
        for key in value:
            value[key] = _with_replaced(value[key], replacements)
    elif isinstance(value, tuple):
        items = [_with_replaced(item, replacements) for item in value]
        if any(new is not old for new, old in zip(items, value, strict=True)):
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def holds_meta(model: nn.Module) -> bool:
    """Whether any tensor without values can be reached from the model, in objects and closures as well."""
    seen: set[int] = set()
    ahead: list[Any] = [model]
    while ahead:
        item = ahead.pop()
        if id(item) in seen or isinstance(item, type | ModuleType | str | bytes | int | float):
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            if item.device.type == "meta":
                return True
        elif isinstance(item, FunctionType):  # its globals would lead everywhere
            ahead += [item.__closure__, item.__defaults__, item.__kwdefaults__]
        else:
            ahead += gc.get_referents(item)
    return False
