"""Carries a `Plan` out on a module, in place and all or nothing: the only place that resizes a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from secateur.base import UsageError, count_text, evaluating, named_tensors, uninterrupted, unwrap, walked
from secateur.capture import described_axes, forget_results_of, read_attribute, write_attributes
from secateur.plans import Plan, TensorCut


def cut(model: nn.Module, plan: Plan, optimizer: Optimizer | None = None) -> None:
    """Checks first, then cuts. Whatever goes wrong on the way, the module is as it was."""
    if isinstance(model, DistributedDataParallel):
        raise UsageError("The model is wrapped for several processes; cut model.module and wrap it again.")
    module = unwrap(model)
    tensors = named_tensors(module)
    require_fit(module, tensors, plan)
    if optimizer is not None:
        require_own(optimizer, module)
    with uninterrupted(), _undone_on_error() as undo:
        for name, numbers in (plan.folded or {}).items():
            _add(tensors[name], numbers, undo)
        for name, tensor_cut in plan.tensors.items():
            _cut_tensor(tensors[name], tensor_cut, undo)
        write_attributes(module, {key: new for key, (_, new) in plan.attributes.items()}, undo)
        shorten_lists(module, plan, undo)
        _update_descriptions(module, undo)
        if optimizer is not None:
            cut_state(optimizer, {tensors[name]: tensor_cut for name, tensor_cut in plan.tensors.items()})
        forget_results_of(module)


def cut_state(optimizer: Optimizer, cuts: dict[Tensor, TensorCut]) -> None:
    """Carries momenta and the like over to the cut parameters. State of another shape, such as the factors of
    Adafactor, cannot be carried over: the parameter starts anew."""
    carried: dict[Tensor, dict[str, Any]] = {}
    for parameter, tensor_cut in cuts.items():
        state = optimizer.state.get(parameter)
        if not state:
            continue
        shaped = [value for value in state.values() if isinstance(value, Tensor) and value.dim() > 0]
        if all(tuple(value.shape) == tensor_cut.shape for value in shaped):
            carried[parameter] = {
                key: selected(value, tensor_cut) if isinstance(value, Tensor) and value.dim() > 0 else value
                for key, value in state.items()
            }
        else:
            carried[parameter] = {}
    optimizer.state.update(carried)


def require_own(optimizer: object, module: nn.Module) -> None:
    if not isinstance(optimizer, Optimizer):
        raise UsageError(f"The optimizer is a {type(optimizer).__name__}; pass the torch optimizer of the model.")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError("LBFGS keeps one state for all parameters, which cannot be cut; make a new one after the cut.")
    own = {id(parameter) for parameter in module.parameters()}
    if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        raise UsageError("The optimizer trains none of the model's parameters; pass the one that was made for it.")


def require_fit(module: nn.Module, tensors: dict[str, Tensor], plan: Plan) -> None:
    """Refuses a plan that was made for another model, or has been applied already."""
    for name, tensor_cut in plan.tensors.items():
        if name not in tensors:
            raise UsageError(
                f"The plan cuts {name}, which the model does not have; use the architecture it was made for."
            )
        shape = tuple(tensors[name].shape)
        if shape != tensor_cut.shape:
            raise UsageError(
                f"The plan cuts {name} of shape {tensor_cut.shape}, but the model's has shape {shape}; "
                "use the architecture it was made for, and apply a plan once."
            )
        if hasattr(tensors[name], "device_mesh"):
            raise UsageError(f"{name} is spread over processes; cut the model before sharding it.")
    _require_lists(module, tensors, plan)
    for name, numbers in (plan.folded or {}).items():
        if name not in tensors or tuple(tensors[name].shape) != (len(numbers),):
            added = count_text(len(numbers), "number")
            raise UsageError(
                f"The plan adds {added} to {name}, which the model does not have in that shape; "
                "use the architecture it was made for, and apply a plan once."
            )
    for attribute, (old, _) in plan.attributes.items():
        found = read_attribute(module, attribute)
        if found != old:
            path, way = attribute
            where = ".".join(str(step) for step in (path, *way) if step != "")
            raise UsageError(
                f"The plan expects {where} to be {old}, but it is {found}; use the architecture it was made for."
            )


def _require_lists(module: nn.Module, tensors: dict[str, Tensor], plan: Plan) -> None:
    """All that a module which goes holds goes with it, and nothing else."""
    if not plan.lists:
        return
    held = dict(walked(module))
    for path, list_cut in plan.lists.items():
        found = held.get(path)
        if not isinstance(found, nn.ModuleList) or len(found) != list_cut.length:
            raise UsageError(
                f"The plan takes modules from {path}, a list of {list_cut.length}, which the model does not have; "
                "use the architecture it was made for, and apply a plan once."
            )
    stay = {id(tensor) for name, tensor in tensors.items() if plan.name_after(name) is not None}
    for name, tensor in tensors.items():
        if plan.name_after(name) is None and (name not in plan.tensors or id(tensor) in stay):
            raise UsageError(
                f"The plan takes away the module of {name}, which something else needs, or of which it knows nothing; "
                "use the architecture it was made for."
            )


def shorten_lists(module: nn.Module, plan: Plan, undo: list[Callable[[], None]]) -> None:
    """Modules leave their lists, and those behind them move up."""
    for path, list_cut in (plan.lists or {}).items():
        held = module.get_submodule(path)._modules
        undo.append(partial(_hold, held, dict(held)))
        modules = list(held.values())
        _hold(held, {str(i): modules[old] for i, old in enumerate(list_cut.kept)})


def _hold(held: dict[str, nn.Module | None], modules: dict[str, nn.Module | None]) -> None:
    held.clear()
    held.update(modules)


@contextmanager
def _undone_on_error() -> Iterator[list[Callable[[], None]]]:
    """Steps that are taken back, last first, if anything fails; an interruption counts as well."""
    undo: list[Callable[[], None]] = []
    try:
        yield undo
    except BaseException:
        for step in reversed(undo):
            step()
        raise


def _add(tensor: Tensor, numbers: Sequence[float], undo: list[Callable[[], None]]) -> None:
    before = tensor.detach().clone()
    undo.append(partial(setattr, tensor, "data", before))
    tensor.data.add_(torch.tensor(numbers, dtype=torch.float64, device=tensor.device).to(tensor.dtype))


def _cut_tensor(tensor: Tensor, tensor_cut: TensorCut, undo: list[Callable[[], None]]) -> None:
    """Replaces the data of a parameter or buffer; the object stays, and with it tying and the optimizer's reference.

    What is removed is kept aside until all is done, rather than the whole old tensor: so the cut needs little memory.
    """
    grad = tensor.grad if tensor.requires_grad or tensor.is_leaf else None
    if grad is not None:
        old_grad = grad
        undo.append(lambda: setattr(tensor, "grad", old_grad))
        tensor.grad = None
    for axis, kept in tensor_cut.kept.items():
        _cut_axis(tensor, axis, kept, undo)
    if grad is not None:
        undo.append(lambda: setattr(tensor, "grad", None))
        tensor.grad = selected(grad, tensor_cut)


def _cut_axis(tensor: Tensor, axis: int, kept: np.ndarray, undo: list[Callable[[], None]]) -> None:
    length, layout, data = tensor.shape[axis], _layout(tensor), tensor.data
    goes = np.ones(length, bool)
    goes[kept] = False
    kept_index, gone_index = (torch.from_numpy(index).to(data.device) for index in (kept, np.flatnonzero(goes)))
    removed = data.index_select(axis, gone_index)
    left = data.index_select(axis, kept_index).contiguous(memory_format=layout)

    def put_together() -> None:
        if tensor.shape[axis] == length:
            return  # interrupted before anything happened
        shape = list(tensor.shape)
        shape[axis] = length
        whole = tensor.data.new_empty(shape).contiguous(memory_format=layout)
        whole.index_copy_(axis, kept_index, tensor.data)
        whole.index_copy_(axis, gone_index, removed)
        _replace_data(tensor, whole)

    undo.append(put_together)
    _replace_data(tensor, left)


def _layout(tensor: Tensor) -> torch.memory_format:
    for ndim, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if tensor.dim() == ndim and tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous():
            return layout
    return torch.contiguous_format


def _replace_data(tensor: Tensor, data: Tensor) -> None:
    """Where an old graph is still held, autograd would go on checking gradients against the old shape; it only forgets
    that shape when the type changes."""
    other = torch.float16 if tensor.dtype != torch.float16 else torch.float32
    try:
        tensor.data = torch.empty(0, dtype=other, device=data.device)
    finally:
        tensor.data = data


def selected(tensor: Tensor, tensor_cut: TensorCut) -> Tensor:
    """What stays of a tensor, in memory of its own."""
    layout = _layout(tensor)
    with torch.no_grad():
        for axis, kept in tensor_cut.kept.items():
            tensor = tensor.index_select(axis, torch.from_numpy(kept).to(tensor.device))
        return tensor.contiguous(memory_format=layout)


def _update_descriptions(module: nn.Module, undo: list[Callable[[], None]]) -> None:
    """The sizes by which torch's own layers describe themselves. Plans have the forward passes that read them."""
    for _, layer in walked(module):
        for name, size in _description(layer).items():
            if layer.__dict__.get(name) != size:
                undo.append(partial(layer.__dict__.__setitem__, name, layer.__dict__[name]))
                layer.__dict__[name] = size


def _description(layer: nn.Module) -> dict[str, int]:
    axes = described_axes(layer)
    if not axes:
        return {}
    weight = layer._parameters.get("weight")
    if weight is None:  # computed on access where it is parametrised, from which spectral norm learns
        with evaluating(layer):
            weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor):
        return {}
    groups = layer.groups if isinstance(layer, _ConvNd) else 1
    return {name: weight.shape[axis] * (groups if axis == 1 else 1) for name, axis in axes.items()}
