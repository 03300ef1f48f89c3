"""The network of a saved engine without its numbers: the model's graph, captured and folded again by shapes alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from secateur.base import SecateurError, UsageError, in_brief
from secateur.capture import TracedCall, batch_axes, call_to_trace
from secateur.checkpoint import (
    difference,
    holds_meta,
    of_the_same_kind,
    replace_tensors,
    tensors_of,
)
from secateur.sparse.dense import DenseLayer
from secateur.sparse.fold import fold_graph
from secateur.sparse.graph import CapturedModel, graph_of
from secateur.sparse.in_place import layers_in_place
from secateur.sparse.origin import Origin, folded_layers


class Misfit(SecateurError):
    """The model does not become the network that was saved."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The saved engine does not fit the model ({reason}); build it again with sparse_engine.")


def skeleton(model: nn.Module, origin: Origin) -> tuple[nn.Module, list[tuple[nn.Module, DenseLayer]]]:
    """The network, and its modules that become layers of the engine, each beside the dense layer that it computes.

    Args:
        model: in evaluation mode; it may be on the meta device.
        origin: of the engine that was saved.
    """
    if other := difference(origin.architecture, tensors_of(model).state):
        raise UsageError(f"The engine is of another model ({other}); build the model that sparse_engine was given.")
    network, layers = (model, layers_in_place(model)) if origin.graph is None else _folded(model, origin)
    if folded_layers(network, [layer for _, layer in layers]) != origin.layers:
        raise Misfit("it has other layers, or other calls are folded into them")
    return network, layers


def _folded(model: nn.Module, origin: Origin) -> tuple[CapturedModel, list[tuple[nn.Module, DenseLayer]]]:
    captured = _captured(model, origin.example_inputs)
    if captured.fingerprint != origin.graph:
        raise Misfit("its graph is another one")
    _replace(captured, _tensors(captured), lambda tensor: torch.empty_like(tensor, device="meta"))
    try:
        layers = fold_graph(captured.graph, [layer.norms for layer in origin.layers])
    except ValueError as error:
        raise Misfit("it has another number of layers") from error
    return captured, [(layer, layer) for layer in layers]


def _captured(model: nn.Module, example_inputs: Any) -> CapturedModel:
    # torch.export writes down the device of what it meets, so the meta device would end up in the graph.
    _replace(model, [tensor for tensor in _tensors(model) if tensor.is_meta], _zeros_never_touched)
    if holds_meta(model):
        raise Misfit("it keeps tensors out of reach")
    try:
        call = call_to_trace(model, example_inputs, batch_axes(model, example_inputs))
        args, kwargs = tree_map(
            lambda item: _zeros_never_touched(item) if isinstance(item, Tensor) else item, (call.args, call.kwargs)
        )
        return graph_of(model, TracedCall(args, kwargs, call.dynamic_shapes))
    except Exception as error:  # the stored inputs may be made up, and the model is the user's
        raise Misfit(in_brief(error)) from error


def _zeros_never_touched(like: Tensor) -> Tensor:
    """On the CPU, in memory that the system hands out only when somebody reads it, which a capture does not do."""
    raw = torch.from_numpy(np.zeros(like.numel() * like.itemsize, np.uint8))
    return raw.view(like.dtype).reshape(like.shape)


def _tensors(network: nn.Module) -> list[Tensor]:
    return list(tensors_of(network).by_stored_name.values())


def _replace(network: nn.Module, tensors: list[Tensor], by: Callable[[Tensor], Tensor]) -> None:
    replace_tensors(network, {id(tensor): of_the_same_kind(tensor, by(tensor)) for tensor in tensors})
