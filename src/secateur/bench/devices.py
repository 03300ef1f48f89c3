"""Where torch runs a model: on the processor, or on a CUDA device. What cannot be is refused in a sentence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from secateur.base import UsageError, copy_of_model, require_one_of

DEVICES = ("cpu", "cuda")
ON_CUDA = ("eager", "compile")
"""The runtimes that run a model where it lies; all others run it on the processor."""


def require_device(device: str, runtime: str | None = None) -> None:
    """That there is such a device, that the runtime runs on it, and that it is here."""
    require_one_of("device", device, DEVICES)
    if device == "cuda" and runtime not in (None, *ON_CUDA):
        raise UsageError(
            f"The runtime {runtime} runs on the processor here, not on CUDA; choose {' or '.join(ON_CUDA)}, or leave "
            "the device out."
        )
    if device == "cuda" and not torch.cuda.is_available():
        why = "torch finds no GPU" if torch.version.cuda else "this torch was built without CUDA"
        raise UsageError(f"There is no CUDA device here: {why}. See what nvidia-smi says, or use the device cpu.")


def device_of(model: nn.Module) -> torch.device:
    """Of its first parameter or buffer; a model without any computes wherever its inputs are."""
    tensors = (*model.parameters(), *model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def model_on(device: str | None, model: nn.Module) -> nn.Module:
    """A copy there, or the model itself where it is there already."""
    return model if device in (None, device_of(model).type) else copy_of_model(model).to(device)


def inputs_on(device: str | None, example_inputs: Any) -> Any:
    return tree_map(lambda item: item.to(device) if device and isinstance(item, Tensor) else item, example_inputs)
