"""`load_engine`: the engine again, with its layers as they were folded, packed and measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from secateur.base import refusing_damage, unwrap
from secateur.checkpoint import (
    ATTRIBUTE,
    BUFFER,
    EXTRA_STATE,
    built_for_real,
    built_on_meta,
    holds_meta,
    of_the_same_kind,
    replace_tensors,
    tensors_of,
    whole_files,
)
from secateur.sparse.backend import why_unavailable
from secateur.sparse.block import join_blocks
from secateur.sparse.dense import DenseConv2d, DenseLayer
from secateur.sparse.engine import SparseEngine
from secateur.sparse.graph import CapturedModel
from secateur.sparse.in_place import put_in_place
from secateur.sparse.layers import SparseConv2d, SparseLinear
from secateur.sparse.origin import Origin
from secateur.sparse.packed import PackedMatrix
from secateur.sparse.stored.engine_files import OpenedEngine
from secateur.sparse.stored.engine_manifest import TENSORS_FILE, EngineManifest, StoredLayer
from secateur.sparse.stored.skeleton import Misfit, skeleton


def load_engine(folder: str | Path, build_model: Callable[[], nn.Module]) -> SparseEngine:
    """The engine that `secateur.save_engine` wrote. On the same machine its outputs are the same to the last bit.

    Args:
        folder: holds an engine. It is refused, with one sentence, unless all of it is whole and fits the model; nothing
            in it is ever run.
        build_model: a function without arguments that builds the model that `sparse_engine` was given; its weights do
            not matter. It is called on the meta device, where tensors take no memory. Only where that is not possible,
            because the code looks at values or keeps tensors out of reach, is it called once more for real.
    """
    with (
        whole_files(Path(folder), EngineManifest) as (manifest, files),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        tensors = files[TENSORS_FILE]
        model = built_on_meta(build_model)
        if model is not None:
            with suppress(Misfit):  # perhaps for want of numbers
                return _engine(OpenedEngine(manifest, tensors), model)
        with torch.device("cpu"):
            model = built_for_real(build_model)
        return _engine(OpenedEngine(manifest, tensors), model)


def _engine(opened: OpenedEngine, model: nn.Module) -> SparseEngine:
    manifest, origin = opened.manifest, opened.manifest.origin
    with refusing_damage(str(opened.file.name)):
        network, layers = skeleton(unwrap(model).eval(), origin)
        packed = _with_packed_layers(network, layers, origin, opened)
        _fill(network, opened, packed)
    if isinstance(network, CapturedModel):
        join_blocks(network.graph)
        lacking = any(tensor.is_meta for tensor in tensors_of(network).by_stored_name.values())
    else:
        lacking = holds_meta(network)
    if lacking:
        raise Misfit("it has tensors that were not saved")
    choices, notes = tuple(layer.choice for layer in manifest.layers), list(manifest.notes)
    if packed and (unavailable := why_unavailable()):
        choices = tuple(replace(each, sparse=False, reason="no kernels") if each.sparse else each for each in choices)
        notes.append(f"What was saved sparse runs dense here: {unavailable}, or install numba.")
    return SparseEngine(network, choices, manifest.threads, notes, origin)


def _with_packed_layers(
    network: nn.Module, layers: list[tuple[nn.Module, DenseLayer]], origin: Origin, opened: OpenedEngine
) -> list[nn.Module]:
    """Puts the layers that were saved sparse in their places, and returns them."""
    packed: list[nn.Module] = []
    for i, (module, layer) in enumerate(layers):
        stored = opened.manifest.layers[i]
        if stored.sparse:
            packed.append(_packed_layer(layer, stored, opened, origin.place(i)))
            put_in_place(network, module, packed[-1])
    return packed


def _packed_layer(layer: DenseLayer, stored: StoredLayer, opened: OpenedEngine, place: str) -> nn.Module:
    """As it was packed; with its zeros where there are no kernels for it."""

    def matrix(name: str) -> PackedMatrix:
        assert stored.panel_width is not None
        parts = [opened.tensor(f"{place}.{name}.{part}") for part in ("starts", "order", "indices", "values")]
        shape = layer.rows_in_a_group, prod(layer.weight.shape[1:])
        return PackedMatrix(shape, stored.block, stored.panel_width, *parts)

    bias = None if layer.bias is None else _like(layer.bias, f"{place}.bias", opened)
    names = [f"matrices.{i}" for i in range(layer.window.groups)] if isinstance(layer, DenseConv2d) else ["matrix"]
    matrices = [matrix(name) for name in names]
    if why_unavailable():
        dense = torch.cat([each.to_dense() for each in matrices])
        layer.weight, layer.bias = dense.reshape(layer.weight.shape), bias
        return layer
    if not isinstance(layer, DenseConv2d):
        return SparseLinear(matrices[0], bias, layer.activation)
    return SparseConv2d(matrices, bias, layer.kernel, layer.window, layer.activation)


def _fill(network: nn.Module, opened: OpenedEngine, packed: list[nn.Module]) -> None:
    """Everything but the packed layers, which are whole already."""
    done = {id(tensor) for layer in packed for tensor in layer.buffers()}
    homes: dict[int, str] = {}
    replacements: dict[int, Tensor] = {}
    for name, place in tensors_of(network).by_stored_name.items():
        if id(place) in done or (name.startswith((BUFFER, ATTRIBUTE)) and not opened.holds(name, place)):
            continue
        own = opened.manifest.tied.get(name, name)
        if homes.setdefault(id(place), own) != own:
            raise Misfit(f"{name} is tied to {homes[id(place)]}, and was not")
        replacements[id(place)] = of_the_same_kind(place, _like(place, name, opened))
    replace_tensors(network, replacements)
    for path, module in network.named_modules():
        if EXTRA_STATE + path in opened.unread:
            module.set_extra_state(opened.tensor(EXTRA_STATE + path))
    stranger = min((name for name in opened.unread if not name.startswith((BUFFER, ATTRIBUTE))), default=None)
    if stranger is not None:
        raise ValueError(f"it holds {stranger}, which has no place in the network")


def _like(place: Tensor, name: str, opened: OpenedEngine) -> Tensor:
    if not opened.holds(name, place):
        raise ValueError(f"it lacks {name} as {place.dtype} of shape {tuple(place.shape)}")
    return opened.tensor(name)
