"""The numbers by which torch's own layers describe themselves: lengths of their weights, which follow a cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from secateur.base import walked
from secateur.capture.expressions import Attribute, Expression
from secateur.capture.trace import Value

# The later ones are of a more general kind. Convolutions hold the channels of one group along their second axis.
_AXES: dict[type[nn.Module], dict[str, int]] = {
    nn.Linear: {"out_features": 0, "in_features": 1},
    _ConvTransposeNd: {"in_channels": 0, "out_channels": 1},
    _ConvNd: {"out_channels": 0, "in_channels": 1},
    _NormBase: {"num_features": 0},
    nn.GroupNorm: {"num_channels": 0},
    nn.Embedding: {"num_embeddings": 0, "embedding_dim": 1},
    nn.EmbeddingBag: {"num_embeddings": 0, "embedding_dim": 1},
    nn.PReLU: {"num_parameters": 0},
}

_WEIGHTS = ("weight", "parametrizations.weight.original", "parametrizations.weight.original1")
"""The tensor that has the weight's shape; the last is that of a weight norm."""


def described_axes(layer: nn.Module) -> Mapping[str, int]:
    """By the name of a number, the axis of the layer's weight whose length it is, times the groups of a convolution
    along the second."""
    return next((axes for kind, axes in _AXES.items() if isinstance(layer, kind)), {})


def descriptions_in(model: nn.Module, leaves: Sequence[Value]) -> dict[Attribute, Expression]:
    """Each such number of the model, as what it is made of."""
    weights = {name: leaf.index for leaf in leaves for name in leaf.names}
    found: dict[Attribute, Expression] = {}
    for path, layer in walked(model):
        axes = described_axes(layer)
        held = [weights[name] for end in _WEIGHTS if axes and (name := f"{path}.{end}".lstrip(".")) in weights]
        for name, axis in axes.items() if held else ():
            length: Expression = "shape", held[0], axis
            grouped = axis == 1 and isinstance(layer, _ConvNd)
            found[path, (name,)] = ("*", length, ("attribute", (path, ("groups",)))) if grouped else length
    return found
