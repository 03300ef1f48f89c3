"""From a pruned model to the tensors that are written: plain, each once, masked ones without their zeros."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed
from torch import Tensor, nn

from secateur.base import UsageError, full_tensor
from secateur.checkpoint.header import DTYPES
from secateur.checkpoint.packing import pack, require_zeros
from secateur.checkpoint.tensors import ATTRIBUTE, BUFFER, EXTRA_STATE, MASK, ModelTensors, tied_names
from secateur.plans import Masks
from secateur.surgery import masked_parameters


@dataclass
class Contents:
    """Filled step by step while a model is gathered."""

    tied: Mapping[str, str]
    weights: dict[str, Tensor] = field(default_factory=dict)
    extras: dict[str, Tensor] = field(default_factory=dict)
    packed: list[str] = field(default_factory=list)
    sharded: bool = False
    _storages: set[int] = field(default_factory=set)

    @property
    def written_here(self) -> bool:
        """Every process gathers what is spread over all of them, and one writes it."""
        return not self.sharded or torch.distributed.get_rank() == 0

    def plain_once(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Each tensor under the first of its names."""
        tied = tied_names(tensors)
        return {name: self.plain(name, tensor) for name, tensor in tensors.items() if name not in tied}

    def plain(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor as safetensors takes it: whole, on the CPU, contiguous, in memory of its own."""
        whole = full_tensor(tensor.detach())
        self.sharded |= hasattr(tensor, "device_mesh")
        if whole.device.type == "meta":
            raise UsageError(f"{name} is on the meta device; load the model's weights before saving it.")
        if type(whole) not in (Tensor, nn.Parameter) or whole.layout != torch.strided or whole.is_quantized:
            raise UsageError(f"{name} is not a plain tensor; save the model before it is quantised or wrapped.")
        if whole.dtype not in DTYPES.values():
            raise UsageError(f"{name} is {whole.dtype}, which safetensors cannot hold; convert it first.")
        whole = whole.cpu().resolve_conj().resolve_neg().contiguous()
        storage = whole.untyped_storage()
        if storage.nbytes() != whole.nbytes or storage.data_ptr() in self._storages:
            whole = whole.clone()
        self._storages.add(whole.untyped_storage().data_ptr())
        return whole


def contents_of(module: nn.Module, tensors: ModelTensors, masks: Masks | None, dense: bool) -> Contents:
    contents = Contents(tied_names(tensors.state))
    contents.weights |= contents.plain_once(tensors.state)
    for prefix, each in ((BUFFER, tensors.buffers), (ATTRIBUTE, tensors.attributes)):
        contents.extras |= {prefix + name: tensor for name, tensor in contents.plain_once(each).items()}
    for path, state in extra_states(module):
        contents.extras[EXTRA_STATE + path] = contents.plain(path, state)
    if masks is not None:
        _add_masks(module, masks, dense, contents)
    return contents


def extra_states(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What modules keep besides parameters and buffers, by their paths."""
    for path, layer in module.named_modules():
        if type(layer).get_extra_state is nn.Module.get_extra_state:
            continue
        state = layer.get_extra_state()
        if not isinstance(state, Tensor):
            raise UsageError(
                f"{path or 'The model'} keeps a {type(state).__name__} as extra state; let its get_extra_state return "
                "a tensor, because a checkpoint holds no Python objects."
            )
        yield path, state


def _add_masks(module: nn.Module, masks: Masks, dense: bool, contents: Contents) -> None:
    masked_parameters(module, masks)  # refuses masks of another model
    home = {name: contents.tied.get(name, name) for name in masks.layers}
    for name, mask in masks.layers.items():
        require_zeros(name, contents.weights[home[name]], mask)
    packed: set[str] = set()
    for name, mask in masks.layers.items():
        own, bits = home[name], torch.from_numpy(mask.bits)
        values = None if dense or own in packed else pack(contents.weights[own], mask)
        if values is None:
            contents.extras[MASK + name] = bits
        else:
            contents.weights |= {own: values, MASK + name: bits}
            contents.packed.append(name)
            packed.add(own)
