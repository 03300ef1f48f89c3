"""`HardwareReport`: everything that `secateur hardware` measured, and what planning asks of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from secateur.base import from_json, to_json
from secateur.bench import CountCurve, Machine, expected_ratio, liked_multiple
from secateur.studies.machine.ablation import Ablation
from secateur.studies.machine.claims import (
    Claim,
    counts_matter,
    half_the_channels,
    linear_speedup,
    only_tensor_cores,
    sparse_can_be_slower,
)
from secateur.studies.machine.sparse_formats import FormatCurve
from secateur.studies.machine.structured import LayerCut, NetworkCut
from secateur.studies.machine.tensor_cores import TensorCores


@dataclass(frozen=True)
class HardwareReport:
    """What `hardware` returns; `print(report)` shows what people say about pruning, and whether it held here.

    Times are on one thread in float32, as ratios; each list is in the order in which it was measured.
    """

    version: str
    """Of secateur."""
    measured_at: str
    """Local date and time."""
    seconds: float
    """That measuring took."""
    machine: Machine
    formats: tuple[FormatCurve, ...]
    ablations: tuple[Ablation, ...]
    """One, where torch can multiply with a CSR weight."""
    tensor_cores: TensorCores
    layers: tuple[LayerCut, ...]
    networks: tuple[NetworkCut, ...]
    rounding: tuple[NetworkCut, ...]
    """One network cut to the same share of channels, with counts as they come and with rounded ones."""
    counts: tuple[CountCurve, ...]
    notes: tuple[str, ...] = ()
    """What could not be measured, and why."""

    @property
    def claims(self) -> tuple[Claim, ...]:
        return (
            sparse_can_be_slower(self.formats),
            only_tensor_cores(self.formats, self.tensor_cores),
            *half_the_channels(self.layers, self.networks),
            *linear_speedup(self.networks),
            counts_matter(self.counts),
        )

    def multiple_of(self, kind: str, runtime: str | None = None) -> int:
        """What the channel counts of a "convolution", a "linear" or a "depthwise" layer should be multiples of.

        Without a runtime, the largest that any of the measured ones asks for.
        """
        return liked_multiple(self.counts, kind, runtime)

    def expected_ratio(self, kind: str, before: int, after: int, runtime: str | None = None) -> float:
        """Of the layer's times when one of its sides is cut from `before` channels to `after`: an estimate.

        1 or more means that this layer will not get faster. Without a runtime, the worst of the measured ones.
        """
        return expected_ratio(self.counts, kind, before, after, runtime)

    def not_measured(self, runtimes: Iterable[str]) -> list[str]:
        return [name for name in runtimes if name not in {curve.runtime for curve in self.counts}]

    def __str__(self) -> str:
        return "\n".join([f"Measured {self.measured_at} on {self.machine}", *map(str, self.claims)])

    def to_json(self) -> dict[str, Any]:
        """What was measured, and the verdicts on it for whoever reads the file."""
        claims = [{"claim": c.text, "verdict": c.verdict, "because": c.because} for c in self.claims]
        recommended = [
            {"kind": c.kind, "runtime": c.runtime, "multiple_of": c.multiple_of, "penalties": c.penalties}
            for c in self.counts
        ]
        return {**to_json(self), "claims": claims, "recommended": recommended}

    @staticmethod
    def from_json(stored: dict[str, Any]) -> HardwareReport:
        """What `to_json` made, checked; the verdicts are found anew."""
        derived = ("claims", "recommended")
        return from_json(HardwareReport, {k: v for k, v in stored.items() if k not in derived}, "the report")
