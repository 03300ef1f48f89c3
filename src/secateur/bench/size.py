"""How large a model is: parameters, non-zeros, bytes in a file, and MACs (multiply-adds) of one forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from secateur.base import evaluating, full_tensor

__all__ = ["ModelSize", "count_macs", "measure_size"]


@dataclass(frozen=True)
class ModelSize:
    parameters: int
    nonzeros: int
    file_bytes: int
    """Parameters and buffers as a plain safetensors file stores them, without its header. Zeros take space there."""


def measure_size(model: nn.Module) -> ModelSize:
    """Counts tied weights once."""
    parameters = [full_tensor(parameter.detach()) for parameter in model.parameters()]
    tensors = [*parameters, *model.buffers()]
    return ModelSize(
        parameters=sum(parameter.numel() for parameter in parameters),
        nonzeros=sum(int(torch.count_nonzero(parameter)) for parameter in parameters),
        file_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
    )


def count_macs(model: nn.Module, *args: Any, **kwargs: Any) -> int:
    """Multiply-adds of matrix products and convolutions in one forward pass; zeros are multiplied, too."""
    from torch.utils.flop_counter import FlopCounterMode

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with evaluating(model), torch.no_grad(), _no_fused_kernels(), FlopCounterMode(display=False) as counter:
        try:
            for parameter in trained:  # the counter fails where a module is given one that has gradients
                parameter.requires_grad_(False)
            model(*args, **kwargs)
        finally:
            for parameter in trained:
                parameter.requires_grad_(True)
    return int(counter.get_total_flops()) // 2  # torch counts a multiply and an add as two


@contextmanager
def _no_fused_kernels() -> Iterator[None]:
    """torch's counter knows none of oneDNN's LSTM, cuDNN's recurrent layers, the CPU's fused attention and the fast
    path of `nn.TransformerEncoderLayer`; without them the same products are made one by one."""
    libraries: list[Any] = [torch.backends.mkldnn, torch.backends.cudnn]
    enabled, fast_path = [library.enabled for library in libraries], torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    for library in libraries:
        library.enabled = False
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for library, before in zip(libraries, enabled, strict=True):
            library.enabled = before
