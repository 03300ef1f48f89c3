"""`save_engine`: a sparse engine into a folder, whole or not at all."""

from __future__ import annotations

import platform
from pathlib import Path

import torch
from torch import Tensor, nn

import secateur
from secateur.base import UsageError
from secateur.checkpoint import (
    EXTRA_STATE,
    Contents,
    extra_states,
    finish_exchange,
    held_by,
    put_in_place,
    stage,
    tied_names,
)
from secateur.sparse.engine import SparseEngine
from secateur.sparse.layers import SparseConv2d, SparseLinear
from secateur.sparse.stored import example_tensors as examples
from secateur.sparse.stored.engine_manifest import LAYOUT, TENSORS_FILE, EngineRecord, StoredLayer, read_engine
from secateur.sparse.stored.skeleton import by_stored_name

__all__ = ["save_engine"]


def save_engine(engine: SparseEngine, folder: str | Path) -> None:
    """Writes an engine to `folder`, for `secateur.load_engine`. Killed on the way, it leaves the one that was there.

    Args:
        engine: that `secateur.sparse_engine` made.
        folder: gets `engine.json` and `engine.safetensors`; a checkpoint may lie beside them.
    """
    if not isinstance(engine, SparseEngine):
        raise UsageError(f"The engine is a {type(engine).__name__}; give what secateur.sparse_engine made.")
    examples.to_json(engine.origin.example_inputs)  # refuses what a record cannot say, before anything is written
    tensors, tied, channels_last = _contents(engine.network)
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be made a folder ({error}); choose another one.") from error
    finish_exchange(path, read_engine, LAYOUT)
    record = EngineRecord(
        tensors=stage(path, TENSORS_FILE, tensors),
        origin=engine.origin,
        layers=_stored_layers(engine),
        threads=engine.threads,
        notes=tuple(engine.notes),
        tied=tied,
        channels_last=channels_last,
        versions={"secateur": secateur.__version__, "torch": torch.__version__, "python": platform.python_version()},
    )
    put_in_place(path, record, LAYOUT)


def _contents(network: nn.Module) -> tuple[dict[str, Tensor], dict[str, str], tuple[str, ...]]:
    """The tensors as they are written, the further names that they have, and those with their channels last."""
    held = by_stored_name(held_by(network))
    contents = Contents(tied_names(held))
    own = {name: tensor for name, tensor in held.items() if name not in contents.tied}
    tensors = {name: contents.plain(name, tensor) for name, tensor in own.items()}
    for path, state in extra_states(network):
        tensors[EXTRA_STATE + path] = contents.plain(path, state)
    return tensors, dict(contents.tied), tuple(name for name, tensor in own.items() if _has_channels_last(tensor))


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
        StoredLayer(choice, folded, _panel_width(module))
        for choice, folded, module in zip(engine.layers, engine.origin.layers, modules, strict=True)
    )


def _panel_width(module: nn.Module) -> int | None:
    if isinstance(module, SparseLinear):
        return module.matrix.panel_width
    return module.groups[0].panel_width if isinstance(module, SparseConv2d) else None
