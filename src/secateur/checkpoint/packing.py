"""A masked weight without its zeros: one bit for each position, and the values at those that are not pruned.

Bits are moved, never numbers, so that every value of every dtype comes back as it was.
"""

from __future__ import annotations

import torch
from torch import Tensor

from secateur.base import UsageError
from secateur.plans import LayerMask

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
