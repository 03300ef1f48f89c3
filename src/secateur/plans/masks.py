"""`Masks`: which weights are pruned for good. Plain data: print it, save it, apply it to another copy of the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from secateur.base import (
    MOST_BYTES,
    Count,
    LeftAlone,
    SecateurError,
    Shape,
    from_json,
    joined_lines,
    open_regular,
    parse_json,
    replace_file,
    require_format,
    to_json,
)

_FORMAT = "secateur-masks"
_VERSION = "1"


@dataclass(frozen=True, eq=False)
class LayerMask:
    """The pruned positions of one weight, one bit each, in row-major order."""

    shape: tuple[int, ...]
    bits: np.ndarray
    zeros: int

    @property
    def weights(self) -> int:
        return prod(self.shape)

    def pruned(self) -> Tensor:
        """A boolean tensor that is True where the weight is pruned."""
        flags = np.unpackbits(self.bits, count=self.weights)
        return torch.from_numpy(flags.view(bool)).reshape(self.shape)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, LayerMask) and self.shape == other.shape and bool(np.array_equal(self.bits, other.bits))
        )

    @staticmethod
    def dense(shape: Sequence[int]) -> LayerMask:
        """That nothing is pruned."""
        return LayerMask(tuple(shape), np.zeros((prod(shape) + 7) // 8, np.uint8), 0)

    @staticmethod
    def pack(pruned: Tensor) -> LayerMask:
        """From a boolean tensor that is True where the weight is pruned."""
        flags = pruned.cpu().contiguous().numpy()
        return LayerMask(tuple(pruned.shape), np.packbits(flags), int(np.count_nonzero(flags)))


@dataclass(frozen=True)
class Masks:
    """For every pruned parameter, by its name in the model, the positions that stay zero."""

    layers: Mapping[str, LayerMask]
    """By the name of the parameter."""
    scope: str = "global"
    """Whether all layers were ranked together ("global") or each on its own ("layer")."""
    pattern: str | None = None
    """Such as "2:4" or "4x1"; None where single weights were pruned."""
    score: str = "l1"
    """What the weights were ranked by."""
    left_alone: tuple[LeftAlone, ...] = ()
    """Parameters that were not ranked, and why."""

    @property
    def misfits(self) -> tuple[LeftAlone, ...]:
        """The layers that stay dense because the pattern does not fit them; their weights count all the same."""
        return tuple(item for item in self.left_alone if item.name in self.layers)

    @property
    def weights(self) -> int:
        """Weights that were ranked, pruned or not, and those of layers that the pattern does not fit."""
        return sum(layer.weights for layer in self.layers.values())

    @property
    def zeros(self) -> int:
        """Weights that are pruned."""
        return sum(layer.zeros for layer in self.layers.values())

    @property
    def sparsity(self) -> float:
        """The pruned share of these weights."""
        return self.zeros / self.weights if self.weights else 0.0

    @property
    def emptied(self) -> tuple[str, ...]:
        """The layers of which nothing is left."""
        return tuple(name for name, layer in self.layers.items() if layer.zeros == layer.weights > 0)

    def __str__(self) -> str:
        pattern = f", pattern {self.pattern}" if self.pattern else ""
        lines = [
            f"Masks: {self.zeros:,} of {self.weights:,} weights pruned ({self.sparsity:.1%}), "
            f"scope {self.scope}, score {self.score}{pattern}"
        ]
        width = max((len(name) for name in self.layers), default=0)
        for name, layer in self.layers.items():
            share = layer.zeros / layer.weights if layer.weights else 0.0
            lines.append(f"  {name:<{width}}  {layer.zeros:>12,} of {layer.weights:>12,}  {share:>6.1%}")
        surprising = [item for item in self.left_alone if item.reason not in ("a bias", "a norm", "not a matrix")]
        lines += [f"  left alone: {item.name} ({item.reason})" for item in surprising]
        return joined_lines(lines)

    @property
    def described(self) -> DescribedMasks:
        layers = {name: DescribedLayer(layer.shape, layer.zeros) for name, layer in self.layers.items()}
        return DescribedMasks(layers, self.scope, self.pattern, self.score, self.left_alone)

    def to_json(self) -> dict[str, Any]:
        """Everything but the bits, as plain JSON values."""
        return to_json(self.described)  # type: ignore[no-any-return]

    def save(self, path: str | Path) -> None:
        """Writes the masks bit-packed as a safetensors file; an older file stays intact until the new one is whole."""
        header = {"format": _FORMAT, "version": _VERSION, "masks": json.dumps(self.to_json())}
        bits = {name: layer.bits for name, layer in self.layers.items()}
        with replace_file(path) as partial:
            save_file(bits, partial, metadata=header)

    @staticmethod
    def load(path: str | Path) -> Masks:
        """Reads masks that `save` wrote; refuses a file that is not one, or not whole."""
        try:
            _require_header_of_bounded_length(path)
            with safe_open(str(path), framework="numpy") as file:
                header = file.metadata() or {}
                require_format(header, _FORMAT, _VERSION, "masks file", "Masks.save", source=str(path))
                described = from_json(DescribedMasks, parse_json(header["masks"].encode()))
                return described.with_bits(file.get_tensor)
        except FileNotFoundError:
            raise SecateurError(f"There is no masks file {path}; check the path.") from None
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SecateurError(f"{path} is not a readable masks file ({error}); save the masks again.") from error


def _require_header_of_bounded_length(path: str | Path) -> None:
    """Of a regular file: safetensors would wait for a pipe, and takes a header of 100 MB."""
    with open_regular(path) as opened:
        if int.from_bytes(opened.read(8), "little") > MOST_BYTES:
            raise ValueError("its header is longer than any needs")


@dataclass(frozen=True)
class DescribedLayer:
    """What a file says about a mask, whose bits are elsewhere."""

    shape: Shape
    zeros: Count

    def __post_init__(self) -> None:
        if self.zeros > self.weights:
            raise ValueError("a mask has more zeros than weights")

    @property
    def weights(self) -> int:
        return prod(self.shape)

    @property
    def bytes_of_bits(self) -> int:
        return (self.weights + 7) // 8

    def with_bits(self, name: str, bits: np.ndarray) -> LayerMask:
        """The mask; refused where the bits are not those that are described."""
        if bits.dtype != np.uint8 or bits.shape != (self.bytes_of_bits,):
            raise ValueError(f"{name} has {bits.size} bytes of bits for shape {self.shape}")
        unused = -self.weights % 8
        if unused and bits[-1] & ((1 << unused) - 1):
            raise ValueError(f"{name} has bits set beyond its last weight")
        zeros = int(np.bitwise_count(bits).sum())
        if zeros != self.zeros:
            raise ValueError(f"{name} has {zeros} zeros where {self.zeros} are recorded")
        return LayerMask(self.shape, bits, zeros)


@dataclass(frozen=True)
class DescribedMasks:
    """All that a file says about masks: everything but their bits."""

    layers: Mapping[str, DescribedLayer]
    scope: str
    pattern: str | None
    score: str
    left_alone: tuple[LeftAlone, ...]

    def with_bits(self, bits: Callable[[str], np.ndarray]) -> Masks:
        layers = {name: layer.with_bits(name, bits(name)) for name, layer in self.layers.items()}
        return Masks(layers, self.scope, self.pattern, self.score, self.left_alone)
