"""How large a model is: parameters, non-zeros, bytes in a file, and MACs (multiply-adds) of one forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from secateur.base import evaluating, full_tensor, uninterrupted
from secateur.capture import plain_execution


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
    counter = _MacCounter()
    # That a function mode is active turns the fast path of attention off, for this thread alone.
    with uninterrupted(patience=1), evaluating(model), plain_execution(), BaseTorchFunctionMode(), counter:
        model(*args, **kwargs)
    return counter.macs


class _MacCounter(TorchDispatchMode):
    """Adds up torch's own formulas. torch's counter would watch the modules of all threads."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.macs = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs, packet = kwargs or {}, func.overloadpacket
        if packet not in _FUSED and packet not in flop_registry and func is not torch.ops.prim.device.default:
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        if packet in _FUSED:
            self.macs += _FUSED[packet](*args)
        elif packet in flop_registry:  # torch counts a multiply and an add as two
            self.macs += flop_registry[packet](*args, **kwargs, out_val=out) // 2
        return out


def _of_attention(queries: Tensor, keys: Tensor, values: Tensor, *rest: Any) -> int:
    return prod(queries.shape[:-1]) * keys.shape[-2] * (queries.shape[-1] + values.shape[-1])


def _of_onednn_layer(inputs: Tensor, from_input: Tensor, from_state: Tensor, *rest: Any) -> int:
    return prod(inputs.shape[:-1]) * (from_input.numel() + from_state.numel())


def _of_cudnn_layers(inputs: Tensor, weights: list[Tensor], *rest: Any) -> int:
    return prod(inputs.shape[:-1]) * sum(weight.numel() for weight in weights if weight.dim() == 2)


# The CPU's fused kernels and cuDNN's recurrent layers, which torch has no formulas for.
_FUSED: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _of_attention,
    torch.ops.aten.mkldnn_rnn_layer: _of_onednn_layer,
    torch.ops.aten._cudnn_rnn: _of_cudnn_layers,
}
