"""What is done to any user's model, whatever is to be pruned: unwrap it, copy it, set its mode and put that back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor, distributed, jit, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from secateur.base.copying import deep_copy
from secateur.base.errors import UsageError, explaining
from secateur.base.interrupts import uninterrupted

Model = TypeVar("Model", bound=nn.Module)


def require_module(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"The model is a {type(model).__name__}; pass the nn.Module that holds the weights.")
    if isinstance(model, jit.ScriptModule):
        raise UsageError(
            "The model is a TorchScript module, whose layers are compiled already; pass the nn.Module that it was made "
            "from."
        )


def unwrap(model: nn.Module) -> nn.Module:
    """The user's module inside `torch.compile`, DistributedDataParallel or AveragedModel, its parameters at home."""
    while True:
        if isinstance(model, DistributedDataParallel | AveragedModel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            _reshard(model)
            return model


def _reshard(model: nn.Module) -> None:
    """After a forward pass without a backward one, FSDP leaves gathered copies in the place of its parameters; whatever
    is written to those is lost, so they have to go first."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not distributed.is_initialized():  # nothing is sharded, and no module has to be looked at
        return
    for module in model.modules():
        if isinstance(module, fsdp.FSDPModule):
            module.reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole tensor behind a parameter that FSDP has spread over processes; any other tensor as it is."""
    gather = getattr(tensor, "full_tensor", None)
    return gather() if gather is not None else tensor


def spread_like(parameter: Tensor, whole: Tensor) -> Tensor:
    """A whole tensor spread over processes as FSDP has spread the parameter; for any other as it is."""
    if getattr(parameter, "device_mesh", None) is None:
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    return distribute_tensor(whole.to(parameter.device), parameter.device_mesh, parameter.placements)


def copy_of_model(model: Model, otherwise: str = "") -> Model:
    """`otherwise` ends the sentence with what else the user could do."""
    with (
        explaining("The model cannot be copied", f"let it hold no graph tensors, locks or files{otherwise}."),
        uninterrupted(patience=1),  # torch turns gradients off while it copies a tensor
    ):
        return deep_copy(model)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The whole model in evaluation mode."""
    with flags_restored(model) as flags:
        if any(flags):
            model.eval()
        yield


@contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """Training mode; a model of which only parts are in evaluation mode keeps them so: its author froze them."""
    with flags_restored(model) as flags:
        if not any(flags):
            model.train()
        yield


def walked(model: nn.Module, *, every_name: bool = False) -> list[tuple[str, nn.Module]]:
    """What `named_modules` yields, by a loop: its generators within generators make a walk three times as long, and a
    plan takes thirty. With `every_name`, modules that are in several places come as often."""
    found: list[tuple[str, nn.Module]] = []
    seen: set[nn.Module] = set()
    waiting = [("", model)]
    while waiting:
        path, module = waiting.pop()
        if module not in seen:
            found.append((path, module))
            if not every_name:
                seen.add(module)
            if module._modules:
                within = f"{path}." if path else ""
                parts = [(within + name, part) for name, part in module._modules.items() if part is not None]
                waiting += reversed(parts)
    return found


def parameters_and_buffers(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Each by every name it has."""
    parameters: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    for path, part in walked(model, every_name=True):
        if part._parameters or part._buffers:
            within = f"{path}." if path else ""
            parameters |= {within + name: each for name, each in part._parameters.items() if each is not None}
            buffers |= {within + name: each for name, each in part._buffers.items() if each is not None}
    return parameters, buffers


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by every name they have."""
    parameters, buffers = parameters_and_buffers(model)
    return parameters | buffers


@contextmanager
def flags_restored(*models: nn.Module) -> Iterator[list[bool]]:
    """Yields whether each module is in training mode."""
    modules = [module for model in models for _, module in walked(model)]
    flags = [module.training for module in modules]
    try:
        yield flags
    finally:
        for module, flag in zip(modules, flags, strict=True):
            if module.training is not flag:
                module.training = flag
