"""How far outputs lie from those of eager PyTorch, and how far they may."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def allowed_difference(precision: str) -> float:
    """Relative to the largest number of an output."""
    return {"float16": 1e-2, "bfloat16": 5e-2}.get(precision, 1e-3)


def difference(expected: np.ndarray, actual: np.ndarray) -> tuple[float, float]:
    """The largest of all numbers, and relative to the largest one expected; infinite where they do not even compare."""
    if expected.shape != actual.shape:
        return float("inf"), float("inf")
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    a, b = expected.astype(wide), actual.astype(wide)
    differing = ~((a == b) | (np.isnan(a) & np.isnan(b)))  # equal infinities are no difference
    largest = float(np.abs(a[differing] - b[differing]).max(initial=0.0))
    if not np.isfinite(largest):
        return float("inf"), float("inf")
    scale = float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
    return largest, largest / (scale or 1.0)


def largest_difference(expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> float:
    """Of all outputs, relative to the largest number in each; infinite where they do not even compare."""
    if len(expected) != len(actual):
        return float("inf")
    return max((difference(a, b)[1] for a, b in zip(expected, actual, strict=True)), default=0.0)
