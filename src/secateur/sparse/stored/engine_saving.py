"""`save_engine`: a sparse engine into a folder, whole or not at all."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from secateur.base import UsageError
from secateur.checkpoint import (
    EXTRA_STATE,
    Contents,
    exchange_files,
    extra_states,
    tensors_of,
    tied_names,
    versions_now,
)
from secateur.sparse.engine import SparseEngine
from secateur.sparse.layers import SparseConv2d, SparseLinear
from secateur.sparse.stored.engine_manifest import TENSORS_FILE, EngineManifest, StoredLayer
from secateur.sparse.stored.example_tensors import written_examples


def save_engine(engine: SparseEngine, folder: str | Path) -> None:
    """Writes an engine to `folder`, for `secateur.load_engine`. Killed on the way, it leaves the one that was there.

    Args:
        engine: that `secateur.sparse_engine` made.
        folder: gets `engine.json` and `engine.safetensors`; a checkpoint may lie beside them.
    """
    if not isinstance(engine, SparseEngine):
        raise UsageError(f"The engine is a {type(engine).__name__}; give what secateur.sparse_engine made.")
    written_examples(engine.origin.example_inputs)  # refuses what a manifest cannot say, before anything is written
    named = tensors_of(engine.network).by_stored_name
    contents = Contents(tied_names(named))
    tensors = contents.plain_once(named)
    channels_last = tuple(name for name in tensors if _has_channels_last(named[name]))
    for path, state in extra_states(engine.network):
        tensors[EXTRA_STATE + path] = contents.plain(path, state)
    origin = engine.origin
    manifest_of = partial(
        EngineManifest,
        architecture=origin.architecture,
        example_inputs=origin.example_inputs,
        graph=origin.graph,
        layers=_stored_layers(engine),
        machine=origin.machine,
        threads=engine.threads,
        notes=tuple(engine.notes),
        tied=contents.tied,
        channels_last=channels_last,
        versions=versions_now(),
    )
    exchange_files(
        Path(folder), EngineManifest, {TENSORS_FILE: tensors}, lambda files: manifest_of(files[TENSORS_FILE])
    )


def _has_channels_last(tensor: Tensor) -> bool:
    if tensor.ndim != 4 or tensor.layout != torch.strided:
        return False
    usual, last = (
        torch.empty_like(tensor, device="meta", memory_format=order).stride()
        for order in (torch.contiguous_format, torch.channels_last)
    )
    return tensor.stride() == last != usual


def _stored_layers(engine: SparseEngine) -> tuple[StoredLayer, ...]:
    modules = [engine.network.get_submodule(engine.origin.place(i)) for i in range(len(engine.layers))]
    return tuple(
        StoredLayer(
            **vars(choice),
            norms=folded.norms,
            residual=folded.residual,
            activation=folded.activation,
            geometry=folded.window,
            panel_width=_panel_width(module),
        )
        for choice, folded, module in zip(engine.layers, engine.origin.layers, modules, strict=True)
    )


def _panel_width(module: nn.Module) -> int | None:
    if isinstance(module, SparseLinear):
        return module.matrix.panel_width
    return module.groups[0].panel_width if isinstance(module, SparseConv2d) else None
