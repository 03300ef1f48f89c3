"""2:4 weights for sparse tensor cores: checks the pattern, and converts linear layers on a CUDA device.

The conversion calls `torch.sparse.to_sparse_semi_structured`, which exists for CUDA only. Everything up to that call
is tested; the call itself has not yet run on a GPU.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from secateur.base import UsageError, full_tensor, unwrap
from secateur.plans import Masks
from secateur.surgery import masked_parameters
from secateur.weights import NofM, find_weights, parse_pattern

Model = TypeVar("Model", bound=nn.Module)


def check_pattern(model: nn.Module, masks: Masks) -> None:
    """Raises unless every masked weight of `model` follows the N:M pattern that the masks were planned for.

    Layers that the pattern does not fit stay dense, and are not looked at.

    Args:
        model: after `secateur.apply`, or trained with `secateur.hold` in force.
        masks: of `plan_weights` with `pattern="2:4"` or another N:M.
    """
    pattern = parse_pattern(masks.pattern) if masks.pattern else None
    if not isinstance(pattern, NofM):
        raise UsageError(f'These masks have the pattern {masks.pattern}; plan them with pattern="2:4" or another N:M.')
    masked_parameters(model, masks)  # the masks of another architecture are refused here
    weights = {weight.name: weight for weight in find_weights(unwrap(model), include=list(masks.layers))[0]}
    for name in (name for name, layer in masks.layers.items() if layer.zeros):
        weight = weights[name]
        assert weight.input_dim is not None, "a pattern is planned only where the input dimension is known"
        broken = pattern.violations(full_tensor(weight.tensor.detach()), weight.input_dim)
        if broken:
            raise UsageError(
                f"{name} breaks {pattern} in {broken:,} groups; apply the masks, and train with secateur.hold in force."
            )


def to_semi_structured(model: Model, masks: Masks) -> Model:
    """Replaces the 2:4 weights of linear layers by torch's compressed form, in place; for inference on CUDA only.

    Layers that its kernels do not take (convolutions, small or odd shapes, float32) stay dense.

    Args:
        model: on a CUDA device, in float16 or bfloat16, its masks applied.
        masks: of `plan_weights` with `pattern="2:4"`.
    """
    if masks.pattern != "2:4":
        raise UsageError(f'Sparse tensor cores take 2:4, not {masks.pattern}; plan with pattern="2:4".')
    check_pattern(model, masks)
    converted = {}
    for path, module in unwrap(model).named_modules():
        name = f"{path}.weight".lstrip(".")
        if isinstance(module, nn.Linear) and name in masks.layers and _fits_kernels(module.weight):
            if module.weight.device.type != "cuda":
                raise UsageError(
                    f"{name} is on {module.weight.device}, and 2:4 kernels exist for CUDA only; "
                    "move the model with .to('cuda') on a GPU of compute capability 8.0 or newer."
                )
            converted[module] = torch.sparse.to_sparse_semi_structured(module.weight.detach())
    if not converted:
        raise UsageError(
            "No masked linear layer fits the 2:4 kernels; they take float16 and bfloat16 weights whose sizes are "
            "multiples of 32 (outputs) and 64 (inputs), so try model.half() first."
        )
    for module, weight in converted.items():
        module.weight = nn.Parameter(weight, requires_grad=False)
    return model


def _fits_kernels(weight: torch.Tensor) -> bool:
    outputs, inputs = weight.shape
    return weight.dtype in (torch.float16, torch.bfloat16) and outputs % 32 == 0 and inputs % 64 == 0
