"""Which parameters of a model may be pruned, under which names, and where their input dimension lies.

Pruned by default are the matrices that multiply activations: the `weight` of linear and convolution layers and of
any other module that has a `weight` of two or more dimensions, and the projections of attention and recurrent layers.
Biases, norms, embeddings and parameters of unknown purpose are left alone unless `include` names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import UninitializedParameter

from secateur.base import LeftAlone, UsageError, full_tensor, matches_any, require_known

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm, nn.RMSNorm)
_RANKED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_PROJECTIONS_IN_ONE_MODULE = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)


@dataclass(frozen=True)
class Weight:
    """One tensor that may be pruned. Tied weights are one `Weight` with several names."""

    name: str
    aliases: tuple[str, ...]
    tensor: Tensor
    input_dim: int | None
    """The dimension that is summed over when the layer multiplies, or None where that is unknown."""


def find_weights(
    model: nn.Module, keep: Sequence[str] = (), include: Sequence[str] = ()
) -> tuple[list[Weight], list[LeftAlone]]:
    """Splits the parameters of `model` into those to prune and those left alone, in the model's own order."""
    names = _names_of_each_tensor(model)
    every_name = [name for aliases in names.values() for name in aliases]
    for option, patterns in (("keep", keep), ("include", include)):
        require_known(option, patterns, every_name)
    modules = dict(model.named_modules(remove_duplicate=False))
    found: list[Weight] = []
    left_alone: list[LeftAlone] = []
    for aliases in names.values():
        parameter = model.get_parameter(aliases[0])
        owners = [(modules[name.rpartition(".")[0]], name.rpartition(".")[2]) for name in aliases]
        if isinstance(parameter, UninitializedParameter):
            raise UsageError(
                f"{aliases[0]} is not initialised yet; run the model once on an example before pruning it."
            )
        if matches_any(keep, aliases):
            left_alone.append(LeftAlone(aliases[0], "named in keep"))
        elif (reason := _reason_to_leave(parameter, owners)) and not matches_any(include, aliases):
            left_alone.append(LeftAlone(aliases[0], reason))
        elif parameter.dtype not in _RANKED or parameter.numel() == 0:
            kind = "empty" if parameter.dtype in _RANKED else f"{parameter.dtype}, which cannot be ranked"
            left_alone.append(LeftAlone(aliases[0], kind))
        else:
            input_dim = _input_dim(owners[0][0]) if parameter.ndim >= 2 else None
            found.append(Weight(aliases[0], tuple(aliases[1:]), parameter, input_dim))
    return found, left_alone


def _names_of_each_tensor(model: nn.Module) -> dict[object, list[str]]:
    """Names by identity of the memory, so that weights tied through shared storage count once, too."""
    names: dict[object, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(_identity(parameter), []).append(name)
    return names


def _identity(parameter: Tensor) -> object:
    if isinstance(parameter, UninitializedParameter) or parameter.device.type == "meta":
        return id(parameter)
    if type(parameter.data) is not Tensor or parameter.numel() == 0:
        return id(parameter)
    return parameter.data_ptr(), parameter.device, tuple(parameter.shape), parameter.stride(), parameter.dtype


def _reason_to_leave(parameter: Tensor, owners: Sequence[tuple[nn.Module, str]]) -> str | None:
    for module, leaf in owners:
        if isinstance(module, _EMBEDDINGS):
            return "an embedding" if len(owners) == 1 else "tied to an embedding"
        if isinstance(module, _NORMS):
            return "a norm"
        if "bias" in leaf:
            return "a bias"
        multiplies = isinstance(module, (nn.Linear, _ConvNd, *_PROJECTIONS_IN_ONE_MODULE))
        if not multiplies and sum(size > 1 for size in parameter.shape) < 2:
            return "not a matrix"
        if leaf != "weight" and not (isinstance(module, _PROJECTIONS_IN_ONE_MODULE) and "weight" in leaf):
            return "its purpose is unknown; name it in include to prune it"
    return None


def _input_dim(module: nn.Module) -> int | None:
    if isinstance(module, _ConvTransposeNd):
        return 0
    return 1 if isinstance(module, (nn.Linear, _ConvNd, *_PROJECTIONS_IN_ONE_MODULE)) else None


def check_finite(weight: Weight) -> None:
    """NaN and Inf have no place in a ranking; a weight on the meta device has no values at all."""
    if weight.tensor.device.type == "meta":
        raise UsageError(f"{weight.name} is on the meta device; load the model's weights before pruning it.")
    low, high = torch.aminmax(full_tensor(weight.tensor.detach()))
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        raise UsageError(f"{weight.name} contains NaN or Inf; repair or reload the weights before pruning.")
