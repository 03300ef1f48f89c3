"""`Result`: the pruned model, what happened at every stop, and whether the model recovered."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import nn

from secateur.base import ADDED_LATER, IF_THERE, aligned, from_json, joined_lines, left_alone_lines, to_json, unwrap
from secateur.bench import ModelSize
from secateur.checkpoint import save
from secateur.loop.histogram import WeightHistogram
from secateur.plans import Masks, Plan
from secateur.weights import find_weights

LOAD_OR_TRAIN = "Load trained weights into the model first, or train it with train=…."
CUTTING = ("cut", "repair", "fine-tune")
"""The phases of a model that is pruned."""
Z = 1.96
"""Standard errors on either side of a 95 % interval."""


@dataclass(frozen=True)
class Record:
    """One stop of the run and what the model was worth after it."""

    stop: str
    phase: str
    """ "before", "train", "cut", "repair" or "fine-tune"."""
    epochs: float
    """Epochs trained in this run up to here."""
    metric: float
    sparsity: float
    """Zeros among the weights that may be pruned."""
    size: ModelSize
    seconds: float
    counted: int = field(default=0, metadata=ADDED_LATER)
    """Predictions that the accuracy was counted over; 0 for a metric of the user's own."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95 % interval of an accuracy: what as many other examples may have given."""
        if not self.counted:
            return None
        share = Z * Z / self.counted
        centre = (self.metric + share / 2) / (1 + share)
        reach = Z / (1 + share) * math.sqrt(self.metric * (1 - self.metric) / self.counted + share / self.counted / 4)
        # The metric itself lies inside, whatever rounding does.
        return max(0.0, min(self.metric, centre - reach)), min(1.0, max(self.metric, centre + reach))

    @property
    def pruned(self) -> str:
        """What has been pruned, to go on a sentence with."""
        if self.sparsity:
            return f", {self.sparsity:.1%} zeros"
        return f", {self.size.parameters:,} parameters" if self.phase in CUTTING else ""


@dataclass(frozen=True)
class History:
    """What the model was worth after every stop of a run: what a `Result` tells without the model."""

    records: tuple[Record, ...]
    """In order."""
    tolerance: float
    """How far below the dense model it may end and still count as recovered."""
    metric_name: str = "accuracy"
    histogram: WeightHistogram | None = None
    """Of the weights as the last cut found them."""
    finished_at: str | None = field(default=None, metadata=IF_THERE)
    """When the last stop was passed, such as "2026-05-17 14:03+02:00"."""
    untrained: bool = field(default=False, metadata=ADDED_LATER)
    """Whether the weights were random before the cut, so that there was nothing to lose and nothing to recover."""

    def __post_init__(self) -> None:
        if not any(record.phase in ("before", "train") for record in self.records):
            raise ValueError("no stop before the cut")

    @property
    def dense(self) -> Record:
        """The last stop before any cut."""
        return [record for record in self.records if record.phase in ("before", "train")][-1]

    @property
    def before(self) -> float:
        """The metric of the dense model."""
        return self.dense.metric

    @property
    def right_after(self) -> float | None:
        """The metric right after the last cut, before any recovery; None for the gradual schedule, which has none."""
        return self._last_metric("cut")

    @property
    def repaired(self) -> float | None:
        """The metric right after the last repair, before any fine-tuning; None where no stop was one."""
        return self._last_metric("repair")

    @property
    def after(self) -> float:
        """The metric of the model that is handed back."""
        return self.records[-1].metric

    @property
    def size_before(self) -> ModelSize:
        return self.dense.size

    @property
    def size_after(self) -> ModelSize:
        return self.records[-1].size

    @property
    def pruned(self) -> bool:
        """Whether anything was; if not, the run only trained."""
        return any(record.phase in CUTTING for record in self.records)

    @property
    def recovered(self) -> bool:
        """Whether the model ended within `tolerance` of where it began."""
        return not self.untrained and self.after >= self.before - self.tolerance

    @property
    def seconds(self) -> dict[str, float]:
        """Wall time of each stop."""
        return {record.stop: record.seconds for record in self.records}

    def _last_metric(self, phase: str) -> float | None:
        return next((record.metric for record in reversed(self.records) if record.phase == phase), None)

    def rows(self) -> list[tuple[str, ...]]:
        """A head, and a row for each stop."""
        stops = [
            (r.stop, f"{r.metric:.4f}", f"{r.size.parameters:,}", f"{r.sparsity:.1%}", f"{r.seconds:.1f}")
            for r in self.records
        ]
        return [("stop", self.metric_name, "parameters", "zeros", "seconds"), *stops]

    @property
    def verdict(self) -> str:
        if not self.pruned:
            return f"Trained: the {self.metric_name} is {self.after:.4f}; nothing was pruned."
        if self.untrained:
            return (
                f"NOT TRAINED: the weights were random before the cut, so that the {self.metric_name} went from "
                f"{self.before:.4f} to {self.after:.4f} tells nothing about pruning. {LOAD_OR_TRAIN}"
            )
        change = self.after - self.before
        ended = f"{abs(change):.4f} {'above' if change > 0 else 'below'} the dense model's {self.before:.4f}"
        if change == 0:
            ended = f"exactly at the dense model's {self.before:.4f}"
        if self.recovered:
            return f"Recovered: the {self.metric_name} ended {ended}."
        return (
            f"DID NOT RECOVER: the {self.metric_name} ended {ended}, more than the {self.tolerance:g} allowed. "
            'Prune less, fine-tune longer, or cut in smaller steps with schedule="iterative".'
        )


@dataclass(frozen=True, kw_only=True)
class Result(History):
    """What `prune` returns. `print(result)` shows the curve and the verdict."""

    model: nn.Module
    """The pruned copy; the model that was passed is as it was."""
    masks: Masks
    """The weights that are zero for good; without layers where channels were removed instead."""
    plan: Plan | None = None
    """The channels that were removed, all cuts as one plan for the dense model."""
    note: str = ""
    """What `prune` chose by itself, where it matters."""

    @property
    def zeros_per_layer(self) -> dict[str, tuple[int, int]]:
        """For each pruned layer its zeros and its weights."""
        return {name: (layer.zeros, layer.weights) for name, layer in self.masks.layers.items()}

    @property
    def left_per_layer(self) -> dict[str, tuple[int, int]]:
        """For each layer what is left of how many: output channels where channels went, otherwise weights."""
        if self.plan is None:
            masked = self.masks.layers.items()
            return {_layer(name): (mask.weights - mask.zeros, mask.weights) for name, mask in masked}
        left = {}
        for weight in find_weights(unwrap(self.model))[0]:
            axis = 1 if weight.input_dim == 0 else 0
            after = weight.tensor.shape[axis]
            cut = self.plan.tensors.get(self.plan.name_before(weight.name))
            left[_layer(weight.name)] = after, cut.shape[axis] if cut else after
        return left

    def save(self, folder: str | Path, *, settings: Any = None, dense: bool = False) -> None:
        """Writes a checkpoint for `secateur.load`, as `secateur.save` does, with this result as its metrics."""
        applied = [step for step in (self.plan, self.masks) if step not in (None, Masks({}))]
        save(self.model, applied, folder, metrics=self.to_json(), settings=settings, dense=dense)

    def to_json(self) -> dict[str, Any]:
        """The result without the model, as plain JSON values."""
        return {
            "before": self.before,
            "right_after": self.right_after,
            "repaired": self.repaired,
            "after": self.after,
            "recovered": self.recovered,
            "metric_name": self.metric_name,
            "untrained": self.untrained,
            "tolerance": self.tolerance,
            "size_before": to_json(self.size_before),
            "size_after": to_json(self.size_after),
            "records": to_json(self.records),
            "masks": self.masks.to_json(),
            "left_per_layer": self.left_per_layer,
            "groups": to_json(self.plan.groups) if self.plan else [],
            "outcome": to_json(self.plan.outcome) if self.plan else None,
            "histogram": to_json(self.histogram),
            "finished_at": self.finished_at,
        }

    def __str__(self) -> str:
        before, after = self.size_before, self.size_after
        size = f"{after.parameters:,} parameters, {before.nonzeros:,} → {after.nonzeros:,} of them non-zero"
        if not self.pruned:
            size = f"{after.parameters:,} parameters"
        elif self.plan is not None:
            macs = f", MACs of one example {self.plan.macs[0]:,} → {self.plan.macs[1]:,}"
            size = f"{before.parameters:,} → {after.parameters:,} parameters{macs}"
        met = [str(self.plan.outcome)] if self.plan and self.plan.outcome else []
        note = [self.note] if self.note else []
        told = [size, *left_alone_lines(self.masks.misfits), *met, *note, self.verdict]
        return joined_lines([*aligned(self.rows(), right=(1, 2, 3, 4)), *told])


def read_history(stored: Any) -> History:
    """From what `Result.to_json` wrote, checked field by field."""
    told = stored if isinstance(stored, dict) else {}
    names = [each.name for each in fields(History) if each.name in told or not each.metadata]
    return from_json(History, {name: told.get(name) for name in names})


def _layer(weight: str) -> str:
    return weight.removesuffix(".weight")
