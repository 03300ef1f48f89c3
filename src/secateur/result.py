"""`Result`: the pruned model, what happened at every stop, and whether the model recovered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from secateur.masks import Masks
from secateur.measure.size import Size

__all__ = ["Record", "Result"]


@dataclass(frozen=True)
class Record:
    """One stop of the run and what the model was worth after it."""

    stop: str
    phase: str
    """ "before", "train", "cut" or "fine-tune"."""
    epochs: float
    """Epochs trained in this run up to here."""
    metric: float
    sparsity: float
    """Zeros among the weights that may be pruned."""
    size: Size
    seconds: float

    @staticmethod
    def from_json(item: Mapping[str, Any]) -> Record:
        return Record(**{**item, "size": Size(**item["size"])})


@dataclass(frozen=True)
class Result:
    """What `prune` returns. `print(result)` shows the curve and the verdict."""

    model: nn.Module
    masks: Masks
    records: tuple[Record, ...]
    tolerance: float
    metric_name: str = "accuracy"

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
        cuts = [record for record in self.records if record.phase == "cut"]
        return cuts[-1].metric if cuts else None

    @property
    def after(self) -> float:
        """The metric of the model that is handed back."""
        return self.records[-1].metric

    @property
    def size_before(self) -> Size:
        return self.dense.size

    @property
    def size_after(self) -> Size:
        return self.records[-1].size

    @property
    def recovered(self) -> bool:
        """Whether the model ended within `tolerance` of where it began."""
        return self.after >= self.before - self.tolerance

    @property
    def zeros_per_layer(self) -> dict[str, tuple[int, int]]:
        """For each pruned layer its zeros and its weights."""
        return {name: (layer.zeros, layer.weights) for name, layer in self.masks.layers.items()}

    @property
    def seconds(self) -> dict[str, float]:
        """Wall time of each stop."""
        return {record.stop: record.seconds for record in self.records}

    @property
    def verdict(self) -> str:
        if not self.masks.layers:
            return f"Trained: the {self.metric_name} is {self.after:.4f}; nothing was pruned."
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

    def to_json(self) -> dict[str, Any]:
        """The result without the model, as plain JSON values."""
        return {
            "before": self.before,
            "right_after": self.right_after,
            "after": self.after,
            "recovered": self.recovered,
            "metric_name": self.metric_name,
            "tolerance": self.tolerance,
            "size_before": asdict(self.size_before),
            "size_after": asdict(self.size_after),
            "records": [asdict(record) for record in self.records],
            "masks": self.masks.to_json(),
        }

    @staticmethod
    def from_json(stored: Mapping[str, Any], model: nn.Module, masks: Masks) -> Result:
        """What `to_json` wrote, put together again with the model and the masks that are stored beside it."""
        records = tuple(Record.from_json(item) for item in stored["records"])
        return Result(model, masks, records, stored["tolerance"], stored["metric_name"])

    def __str__(self) -> str:
        rows = [("stop", self.metric_name, "zeros", "seconds")]
        rows += [(r.stop, f"{r.metric:.4f}", f"{r.sparsity:.1%}", f"{r.seconds:.1f}") for r in self.records]
        size = (
            f"{self.size_after.parameters:,} parameters, "
            f"{self.size_before.nonzeros:,} → {self.size_after.nonzeros:,} of them non-zero"
        )
        return "\n".join([*_aligned(rows), size, self.verdict])


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
