"""Masked models for the sparse engine, and its exact reference: the model itself in float64."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from secateur.bench.timing import Timing
from secateur.sparse.block import run_block
from secateur.sparse.engine import SparseEngine

FASTER = Timing(seconds=1e-3, ratio=0.5, low=0.4, high=0.6, rounds=20)
BARELY_FASTER = Timing(seconds=1e-3, ratio=0.97, low=0.96, high=0.98, rounds=20)
SLOWER = Timing(seconds=1e-3, ratio=2.0, low=1.9, high=2.1, rounds=20)
CONTROL = Timing(seconds=2e-3, ratio=1.0, low=0.95, high=1.05, rounds=20)
UNSURE = Timing(seconds=1e-3, ratio=0.9, low=0.7, high=1.1, rounds=20)


def masked(model: nn.Module, zeros: float = 0.9, block: int = 1) -> nn.Module:
    """Zeros in every layer, singly or in blocks of neighbouring outputs, and batch norms as training leaves them."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            weight = module.weight.detach()
            keep = torch.rand(-(-weight.shape[0] // block), *weight.shape[1:]) >= zeros
            weight *= keep.repeat_interleave(block, 0)[: weight.shape[0]]
        elif isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    return model


def assert_same(engine: nn.Module, model: nn.Module, *args: Any, **kwargs: Any) -> None:
    """The same structure with the same numbers as in float64, within 1e-5 of the largest."""
    exact = copy.deepcopy(model).double().eval()
    wide_args, wide_kwargs = tree_map(_double, (args, kwargs))
    args, kwargs = tree_map(lambda each: _clone(each) if isinstance(each, Tensor) else each, (args, kwargs))
    with torch.no_grad():
        expected, found = exact(*wide_args, **wide_kwargs), engine(*args, **kwargs)
    assert type(found) is type(expected)
    pairs = list(zip(tree_leaves(expected), tree_leaves(found), strict=True))
    assert pairs
    for wanted, got in pairs:
        assert got.shape == wanted.shape
        assert got.dtype == torch.float32
        assert (got.double() - wanted).abs().max() <= 1e-5 * wanted.abs().max().clamp(min=1e-30)


def _double(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.double() if value.is_floating_point() else value.clone()


def _clone(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.preserve_format)


def images_of_all_kinds(*shape: int) -> Iterator[Tensor]:
    """Of several batches, channels-last, and with gaps in memory."""
    for batch in (1, 2, 5):
        yield torch.randn(batch, *shape)
    yield torch.randn(3, *shape).to(memory_format=torch.channels_last)
    yield torch.randn(2, shape[0], shape[1], 2 * shape[2])[..., ::2]
    yield torch.randn(2, shape[2], shape[1], shape[0]).transpose(1, 3)


def calls_left(engine: SparseEngine) -> Counter[str]:
    """What the engine's graph computes outside its layers, by ATen name."""
    return Counter(
        str(node.target).removeprefix("aten.")
        for node in engine.network.graph.graph.nodes
        if node.op == "call_function" and node.target is not run_block
    )
