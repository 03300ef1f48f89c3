"""`PruningState`: how far a training has been pruned. Kept with its checkpoints, as plain data that runs no code."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from secateur.base import (
    IF_THERE,
    NOT_STORED,
    Count,
    FileFormat,
    Finite,
    SecateurError,
    from_json,
    load_record,
    parse_json,
    refusing_damage,
    to_json,
    write_text,
)
from secateur.plans import DescribedMasks, Masks, Plan

STATE_FILE = "pruning.json"
MASKS_FILE = "pruning-masks.safetensors"


@dataclass(frozen=True)
class PruningState:
    _file_format: ClassVar = FileFormat("secateur-pruning", 1, "state of a pruning", "TrainingPruner.save")

    step: Count = 0
    """Steps of the optimizer so far."""
    progress: Finite = 0.0
    """The share of the way to the final amount that is gone, 0 to 1."""
    plan: Plan | None = field(default=None, metadata=IF_THERE)
    """All cuts of channels as one."""
    zeros: Count | None = field(default=None, metadata=IF_THERE)
    """How many weights the masks hold at zero."""
    masks: Masks | None = field(default=None, metadata=NOT_STORED)
    """Those in force; stored beside the rest, as bits."""

    def save(self, folder: str | Path) -> None:
        if self.masks is not None:
            self.masks.save(Path(folder) / MASKS_FILE)
        write_text(Path(folder) / STATE_FILE, json.dumps(to_json(self)))

    @staticmethod
    def load(folder: str | Path) -> PruningState:
        state = load_record(PruningState, Path(folder) / STATE_FILE)
        return state if state.zeros is None else state._with(Masks.load(Path(folder) / MASKS_FILE), folder)

    def to_dict(self) -> dict[str, Any]:
        """Text and tensors, for a checkpoint that is one dict."""
        stored: dict[str, Any] = {"state": json.dumps(to_json(self))}
        if self.masks is not None:
            bits = {name: torch.from_numpy(layer.bits.copy()) for name, layer in self.masks.layers.items()}
            stored |= {"masks": json.dumps(self.masks.to_json()), "bits": bits}
        return stored

    @staticmethod
    def from_dict(stored: Any) -> PruningState:
        """What `to_dict` made, checked."""
        source = "The pruning state in the checkpoint"
        with refusing_damage(source):
            state = from_json(PruningState, parse_json(stored["state"].encode()))
            if state.zeros is None:
                return state
            described = from_json(DescribedMasks, parse_json(stored["masks"].encode()))
            return state._with(described.with_bits(lambda name: stored["bits"][name].numpy()), source)

    def _with(self, masks: Masks, source: object) -> PruningState:
        if masks.zeros != self.zeros:
            raise SecateurError(
                f"{source} has masks of {masks.zeros:,} zeros where {self.zeros:,} are recorded; "
                "go on from another checkpoint."
            )
        return replace(self, masks=masks)
