"""`Exported`: what an export wrote, how far it is from PyTorch, and what int8 cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from secateur.base import aligned
from secateur.bench import Timing

ALLOWED_LOSS = 0.02
"""What int8 may cost of the metric before it is said aloud: as much as a cut may, to count as recovered."""


@dataclass(frozen=True)
class Int8:
    """The int8 file beside the float file that it was made from, both in the runtime."""

    metric_name: str
    metric_before: float
    metric_after: float
    bytes_before: int
    calibration_examples: int
    timing: Timing
    """On one thread and the example inputs; the ratio is to the float file."""
    control: Timing
    """The float file against itself."""

    @property
    def lost(self) -> float:
        return self.metric_before - self.metric_after

    @property
    def too_costly(self) -> bool:
        return not self.lost <= ALLOWED_LOSS  # NaN is

    @property
    def cost(self) -> str:
        if self.too_costly:
            advice = "calibrate on more data, or deploy the float file"
            return f"int8 cost {self.lost:.4f} of it, more than the {ALLOWED_LOSS:g} allowed: {advice}"
        return f"int8 cost {self.lost:.4f} of it" if self.lost > 0 else "int8 cost nothing"

    @property
    def speed(self) -> str:
        return self.timing.in_words(self.control)

    def rows(self) -> list[tuple[str, str]]:
        return [
            ("calibrated", f"on {self.calibration_examples:,} examples"),
            (self.metric_name, f"{self.metric_before:.4f} → {self.metric_after:.4f}: {self.cost}"),
            ("time", f"{self.timing} × float on this machine: {self.speed}"),
        ]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "lost": self.lost, "too_costly": self.too_costly}


@dataclass(frozen=True)
class Exported:
    """What `export` returns. `print(exported)` says what the file is and how it was checked."""

    path: Path
    format: str
    runtime: str
    """With its version."""
    precision: str
    """Of the weights."""
    file_bytes: int
    """Of all files, where there are several."""
    inputs: dict[str, list[int | str]]
    """Their shapes, by the names that the model gives them; an axis that may change has a name in place of a size."""
    outputs: tuple[str, ...]
    """Their names."""
    left_out: tuple[str, ...]
    """Arguments in the example inputs that only the loss needs, such as labels."""
    compared: tuple[dict[str, int], ...]
    """The sizes of each axis, such as the batch, with which the file was compared with PyTorch; the example's first."""
    fixed_because: dict[str, str]
    """For each axis that has the example's size only, why."""
    max_error: float
    """The largest difference of any output from PyTorch's."""
    relative_error: float
    """The same, relative to the largest number of the output."""
    loading: str
    """Python that opens the file in its runtime."""
    int8: Int8 | None = None

    @property
    def any_batch(self) -> bool:
        return "batch" not in self.fixed_because

    @property
    def batches(self) -> tuple[int, ...]:
        """The batches on which the file was compared with PyTorch."""
        return tuple(sizes["batch"] for sizes in self.compared)

    def __str__(self) -> str:
        megabytes = f"{self.file_bytes / 1e6:.2f} MB"
        if self.int8 is not None:
            megabytes = f"{self.int8.bytes_before / 1e6:.2f} → {megabytes}"
        rows = [
            ("format", f"{self.format}, {self.precision}"),
            ("inputs", ", ".join(f"{name} [{', '.join(map(str, shape))}]" for name, shape in self.inputs.items())),
            ("outputs", ", ".join(self.outputs)),
            *(
                [
                    (
                        "left out",
                        f"{', '.join(self.left_out)}: only the loss needs {'them' if self.left_out[1:] else 'it'}",
                    )
                ]
                if self.left_out
                else []
            ),
            *((name, self._allowed(name, size)) for name, size in self.compared[0].items()),
            ("size", megabytes),
            ("max error", f"{self.max_error:.1e}, {self.relative_error:.1e} of the largest output, against PyTorch"),
            ("run in", ", ".join([self.runtime, *map(self._sizes, self.compared[0])])),
        ]
        return "\n".join([str(self.path), *aligned([*rows, *(self.int8.rows() if self.int8 else [])])])

    def _allowed(self, axis: str, size: int) -> str:
        return (
            f"{size or 'none'}{' only' if size else ''}: {self.fixed_because[axis]}"
            if axis in self.fixed_because
            else "any"
        )

    def _sizes(self, axis: str) -> str:
        return f"{axis} {', '.join(map(str, sorted({sizes[axis] for sizes in self.compared})))}"

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "path": str(self.path),
            "any_batch": self.any_batch,
            "batches": self.batches,
            "int8": self.int8.to_json() if self.int8 else None,
        }
