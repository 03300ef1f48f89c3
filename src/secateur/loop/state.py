"""`State`: what a run has done to its model so far. Plain data, kept after every stop for a resumed run."""

from __future__ import annotations

from dataclasses import dataclass

from secateur.loop.histogram import WeightHistogram
from secateur.loop.result import Record
from secateur.plans import Masks, Plan


@dataclass(frozen=True)
class State:
    records: tuple[Record, ...] = ()
    masks: Masks | None = None
    """Those in force."""
    plan: Plan | None = None
    """All cuts as one."""
    histogram: WeightHistogram | None = None
    """Of the weights as the last cut found them."""

    @property
    def untouched(self) -> bool:
        """Whether the model is still the one that the run was given."""
        trained = any(record.phase in ("train", "fine-tune") for record in self.records)
        return not trained and self.masks is None and self.plan is None

    @property
    def sparsity(self) -> float:
        return self.masks.sparsity if self.masks else 0.0
