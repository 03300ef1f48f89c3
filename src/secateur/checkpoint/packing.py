"""A masked weight without its zeros: one bit for each position, and the values at those that are not pruned.

Bits are moved, never numbers, so that every value of every dtype comes back as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from secateur.errors import UsageError
from secateur.masks import LayerMask, Masks
from secateur.weights import LeftAlone

__all__ = ["mask_from_bits", "masks_from_json", "pack", "require_zeros", "unpack"]

_BITS_OF_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def pack(weight: Tensor, mask: LayerMask) -> Tensor | None:
    """The values that are not pruned; None where a pruned one has bits in it, as a negative zero does."""
    bits, pruned = _as_bits(weight), mask.pruned().flatten()
    if bool(bits.masked_select(pruned).any()):
        return None
    return bits.masked_select(~pruned).view(weight.dtype)


def unpack(values: Tensor, mask: LayerMask) -> Tensor:
    bits = torch.zeros(mask.weights, dtype=_BITS_OF_BYTES[values.element_size()], device="cpu")
    bits.masked_scatter_(~mask.pruned().flatten(), _as_bits(values))
    return bits.view(values.dtype).reshape(mask.shape)


def _as_bits(tensor: Tensor) -> Tensor:
    return tensor.flatten().view(_BITS_OF_BYTES[tensor.element_size()])


def require_zeros(name: str, weight: Tensor, mask: LayerMask) -> None:
    pruned = weight.flatten().masked_select(mask.pruned().flatten())
    if bool((pruned != 0).any()):
        raise UsageError(
            f"{name} is not zero everywhere its mask prunes it; apply the masks, hold them in training, and save then."
        )


def mask_from_bits(name: str, layer: Mapping[str, Any], bits: Tensor) -> LayerMask:
    """The mask that `layer` describes and `bits`, whose number is right, hold; refused where they contradict."""
    mask = LayerMask(tuple(layer["shape"]), bits.numpy(), layer["zeros"])
    unused = -mask.weights % 8
    if unused and mask.bits[-1] & ((1 << unused) - 1):
        raise ValueError(f"the mask of {name} has bits beyond its last weight")
    if int(np.bitwise_count(mask.bits).sum()) != mask.zeros:
        raise ValueError(f"the mask of {name} does not have {mask.zeros:,} zeros")
    return mask


def masks_from_json(described: Mapping[str, Any], layers: Mapping[str, LayerMask]) -> Masks:
    left_alone = tuple(LeftAlone(**item) for item in described["left_alone"])
    return Masks(layers, described["scope"], described["pattern"], described["score"], left_alone)
