"""`HardwareReport`: everything that `secateur hardware` measured, and what planning asks of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from secateur import stored
from secateur.errors import UsageError
from secateur.hardware.ablation import Ablation
from secateur.hardware.alignment import CountCurve
from secateur.hardware.claims import (
    Claim,
    counts_matter,
    half_the_channels,
    linear_speedup,
    only_tensor_cores,
    sparse_can_be_slower,
)
from secateur.hardware.layers import require_kind
from secateur.hardware.sparse_formats import FormatCurve
from secateur.hardware.structured import LayerCut, NetworkCut
from secateur.hardware.tensor_cores import TensorCores
from secateur.measure.machine import Machine

__all__ = ["HardwareReport"]


@dataclass(frozen=True)
class HardwareReport:
    """Times on one thread in float32, as ratios; each list is in the order in which it was measured."""

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
        return max(curve.multiple_of for curve in self._curves(kind, runtime))

    def expected_ratio(self, kind: str, before: int, after: int, runtime: str | None = None) -> float:
        """Of the layer's times when one of its sides is cut from `before` channels to `after`.

        An estimate, from the multiply-adds and from what such counts cost on average: 1 or more means that this layer
        will not get faster. Without a runtime, the worst of the measured ones.
        """
        if not 0 < after <= before:
            raise UsageError(f"A cut from {before} to {after} channels is none; give 1 to {before} that stay.")
        curves = self._curves(kind, runtime)
        return max(after / before * curve.penalty(after) / curve.penalty(before) for curve in curves)

    def not_measured(self, runtimes: Iterable[str]) -> list[str]:
        return [name for name in runtimes if name not in {curve.runtime for curve in self.counts}]

    def to_json(self) -> dict[str, Any]:
        """What was measured, and the verdicts on it for whoever reads the file."""
        claims = [{"claim": c.text, "verdict": c.verdict, "because": c.because} for c in self.claims]
        recommended = [
            {"kind": c.kind, "runtime": c.runtime, "multiple_of": c.multiple_of, "penalties": c.penalties}
            for c in self.counts
        ]
        return {**stored.to_json(self), "claims": claims, "recommended": recommended}

    @staticmethod
    def from_json(item: Any) -> HardwareReport:
        """What `to_json` made, checked; the verdicts are found anew."""
        if not isinstance(item, dict):
            raise stored.Damaged("there is no report in it")
        derived = ("claims", "recommended")
        return stored.from_json(HardwareReport, {k: v for k, v in item.items() if k not in derived}, "the report")

    def _curves(self, kind: str, runtime: str | None) -> list[CountCurve]:
        require_kind(kind)
        curves = [curve for curve in self.counts if curve.kind == kind and runtime in (None, curve.runtime)]
        if not curves:
            known = ", ".join(sorted({curve.runtime for curve in self.counts}))
            raise UsageError(f"{runtime} was not measured; choose one of {known}, or install it and measure again.")
        return curves
