"""Sets the pruned positions of weights to zero, on whatever device and in however many processes they lie."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from secateur.base import UsageError, uninterrupted, unwrap
from secateur.plans import LayerMask, Masks


def masked_parameters(model: nn.Module, masks: Masks) -> list[tuple[nn.Parameter, LayerMask]]:
    """Each masked parameter with its mask; all of them are checked before the first is handed out."""
    parameters = dict(unwrap(model).named_parameters(remove_duplicate=False))
    for name, layer in masks.layers.items():
        if name not in parameters:
            raise UsageError(f"The masks name {name}, which this model lacks; use the architecture they were made for.")
        shape = tuple(parameters[name].shape)
        if shape != layer.shape:
            raise UsageError(
                f"The mask of {name} has shape {layer.shape}, but the weight has {shape}; "
                "use the architecture the masks were made for."
            )
        if parameters[name].device.type == "meta":
            raise UsageError(f"{name} is on the meta device; load the model's weights first.")
    return [(parameters[name], layer) for name, layer in masks.layers.items()]


def zero_pruned(model: nn.Module, masks: Masks) -> None:
    zero(pruned_positions(model, masks))


def pruned_positions(model: nn.Module, masks: Masks) -> list[tuple[Tensor, Tensor]]:
    """Each masked parameter with what is True where it is pruned; one that cannot be written to is refused."""
    found: list[tuple[Tensor, Tensor]] = []
    for parameter, layer in masked_parameters(model, masks):
        zero([(parameter, torch.tensor(False, device=parameter.device))])
        found.append((parameter, _laid_out_like(parameter, layer.pruned())))
    return found


def zero(pruned: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Zeroes the pruned positions of parameters or of their optimizer state, whatever values are there now."""
    with uninterrupted(), torch.no_grad():
        for tensor, positions in pruned:
            _local(tensor).masked_fill_(positions, 0)


def _laid_out_like(parameter: Tensor, pruned: Tensor) -> Tensor:
    """On the parameter's device, and for a parameter that FSDP has spread over processes, this process's part."""
    pruned = pruned.to(parameter.device)
    if hasattr(parameter, "device_mesh"):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(parameter, DTensor)
        return distribute_tensor(pruned, parameter.device_mesh, parameter.placements).to_local()
    return pruned


def _local(tensor: Tensor) -> Tensor:
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor
