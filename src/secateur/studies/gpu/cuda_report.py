"""`GpuReport`: everything that `secateur hardware --device cuda` measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from secateur.base import from_json, to_json
from secateur.bench import Machine, Timing
from secateur.studies.gpu.cuda_products import (
    BLOCKS,
    CSR,
    DENSE,
    HALF,
    NARROWER,
    OFF_GRID,
    ON_GRID,
    TWO_OF_FOUR,
    UNKNOWN,
    WIDTHS,
    Product,
)
from secateur.studies.machine.claims import span

QUESTIONS = {
    "Zeros anywhere": (CSR,),
    "Zeros in blocks": tuple(BLOCKS),
    "2:4": tuple(TWO_OF_FOUR),
    "Fewer channels": (NARROWER, HALF),
}


@dataclass(frozen=True)
class GpuReport:
    """What `hardware(device="cuda")` returns; `print(report)` answers four questions in a sentence each."""

    version: str
    """Of secateur."""
    measured_at: str
    """Local date and time."""
    seconds: float
    """That measuring took."""
    machine: Machine
    size: int
    """Of the square weight."""
    sparsity: float
    """Of the formats that hold zeros anywhere or in blocks."""
    products: tuple[Product, ...]

    @property
    def gpu(self) -> str:
        return next((product.gpu for product in self.products if product.gpu != UNKNOWN), self.machine.gpu)

    @property
    def points(self) -> int:
        """How many times were measured, beside the dense ones and the null controls."""
        return sum(len(product.timings.keys() - {DENSE}) for product in self.products)

    @property
    def answers(self) -> tuple[str, ...]:
        return (*(self._answer(question) for question in QUESTIONS), self._grid)

    def widths(self) -> dict[str, int]:
        return {name: width(self.size) for name, width in WIDTHS.items()}

    def refusals(self) -> dict[tuple[str, str, str], list[int]]:
        """The batches, by format, type and the reason why it was not measured with them."""
        found: dict[tuple[str, str, str], list[int]] = {}
        for product in self.products:
            for name, why in product.refused.items():
                found.setdefault((name, product.dtype, why), []).append(product.batch)
        return found

    def _answer(self, question: str) -> str:
        """Where the best of the formats beats dense beyond the noise, and by how much."""
        formats = QUESTIONS[question]
        measured = [(product, name) for product in self.products for name in formats if name in product.timings]
        if not measured:
            return f"{question}: not measured."
        faster = [each for each in measured if _timing(each).is_faster(_control(each))]
        took = f"{span(_timing(each).ratio for each in measured)} × dense"
        if not faster:
            return f"{question}: never faster than dense beyond the noise; {took}."
        product, name = min(faster, key=lambda each: _timing(each).ratio)
        return (
            f"{question}: faster than dense {_batches_text({each[0].batch for each in faster})}, {took}; the best is "
            f"{name} in {product.dtype} at batch {product.batch:,} with {_timing((product, name))}, null control "
            f"{_control((product, name))}."
        )

    @property
    def _grid(self) -> str:
        both = [product for product in self.products if {OFF_GRID, ON_GRID} <= product.timings.keys()]
        if not both:
            return "Widths off the grid: not measured."
        on, off = (f"{self.widths()[name]:,}" for name in (ON_GRID, OFF_GRID))
        dearer = [product for product in both if _off_grid(product)[0] > max(1, _control((product, OFF_GRID)).high)]
        if not dearer:
            return f"Widths off the grid: {off} takes no longer than {on} beyond the noise."
        worst = max(dearer, key=lambda product: _off_grid(product)[1])
        low, ratio, high = _off_grid(worst)
        return (
            f"Widths off the grid: {off} takes up to {ratio:.2f} [{low:.2f}, {high:.2f}] × the time of {on} "
            f"({worst.dtype}, batch {worst.batch:,})."
        )

    def __str__(self) -> str:
        return "\n".join([f"Measured {self.measured_at} on {self.gpu}", *self.answers])

    def to_json(self) -> dict[str, Any]:
        """What was measured, and the answers for whoever reads the file."""
        return {**to_json(self), "answers": list(self.answers)}

    @staticmethod
    def from_json(stored: dict[str, Any]) -> GpuReport:
        """What `to_json` made, checked; the answers are found anew."""
        return from_json(GpuReport, {key: value for key, value in stored.items() if key != "answers"}, "the report")


def _off_grid(product: Product) -> tuple[float, float, float]:
    """What a few channels more than a grid cost, with the widest interval that the two ratios to dense allow."""
    on, off = product.timings[ON_GRID], product.timings[OFF_GRID]
    return off.low / on.high, off.ratio / on.ratio, off.high / on.low


def _timing(each: tuple[Product, str]) -> Timing:
    product, name = each
    return product.timings[name]


def _control(each: tuple[Product, str]) -> Timing:
    control = each[0].control
    assert control is not None, "it is measured with the timings"
    return control


def _batches_text(batches: Iterable[int]) -> str:
    numbers = [f"{batch:,}" for batch in sorted(batches)]
    *most, last = numbers
    return f"at batch {', '.join(most)} and {last}" if most else f"at batch {last}"
