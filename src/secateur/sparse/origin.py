"""What an engine was made from, and where: all that is needed to make it again, but the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from secateur.bench import this_machine
from secateur.checkpoint import tensors_of
from secateur.sparse.dense import Activation, DenseConv2d, DenseLayer
from secateur.sparse.fold import LAYERS
from secateur.sparse.graph import CapturedModel
from secateur.sparse.window import Window


@dataclass(frozen=True)
class Folded:
    """A layer of the engine, and what was folded into it."""

    name: str
    kind: Literal["linear", "conv"]
    shape: tuple[int, ...]
    """Of the weight."""
    norms: int
    residual: bool
    activation: Activation
    window: Window | None
    """None for a linear layer."""


@dataclass(frozen=True)
class Origin:
    """Frozen when the engine is made; a saved engine keeps it."""

    architecture: Mapping[str, tuple[int, ...]]
    """The shapes of the model's parameters and persistent buffers, by every name they have."""
    example_inputs: Any
    """As they were given, with their tensors on the meta device."""
    graph: str | None
    """The fingerprint of the model's graph; None where its layers were replaced one by one."""
    layers: tuple[Folded, ...]
    machine: str
    """Where it was measured."""

    def place(self, index: int) -> str:
        """Under which name the network holds a layer."""
        return self.layers[index].name if self.graph is None else f"graph.{LAYERS}.{index}"


def origin_of(model: nn.Module, example_inputs: Any, network: nn.Module, layers: Sequence[DenseLayer]) -> Origin:
    """Of an engine whose layers are all dense yet."""
    whole = dict(example_inputs) if isinstance(example_inputs, Mapping) else example_inputs
    return Origin(
        architecture={name: tuple(tensor.shape) for name, tensor in tensors_of(model).state.items()},
        example_inputs=tree_map(_without_numbers, whole),
        graph=network.fingerprint if isinstance(network, CapturedModel) else None,
        layers=folded_layers(network, layers),
        machine=this_machine().name,
    )


def _without_numbers(value: Any) -> Any:
    return torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value


def folded_layers(network: nn.Module, layers: Sequence[DenseLayer]) -> tuple[Folded, ...]:
    """In their order in the network."""
    nodes = network.graph.graph.nodes if isinstance(network, CapturedModel) else ()
    with_residual = {node.target for node in nodes if node.op == "call_module" and len(node.args) > 1}
    return tuple(
        Folded(
            name=layer.name,
            kind=layer.kind,
            shape=tuple(layer.weight.shape),
            norms=layer.norms,
            residual=f"{LAYERS}.{i}" in with_residual,
            activation=layer.activation,
            window=layer.window if isinstance(layer, DenseConv2d) else None,
        )
        for i, layer in enumerate(layers)
    )
