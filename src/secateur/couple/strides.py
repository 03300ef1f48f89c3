"""`as_strided`: along which axes of a tensor each axis of a strided view of it steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

from secateur.capture import SizeUse, expression_of, leaves_of


@dataclass(frozen=True)
class Run:
    """Axes of the tensor that are neighbours in memory."""

    axes: Sequence[int]
    inside: Sequence[int]
    """The axes further inside: one step along the run is as long as they are together."""
    steps: dict[int, int] = field(default_factory=dict)
    """The axes of the view, by number, that step along the run, and how far."""


def find_runs(use: SizeUse, size: Sequence[int]) -> list[Run] | None:
    """The finest division of the tensor's axes in which no axis of the view, of these sizes, leaves its run.

    None where there is none, for a tensor with gaps in memory, and for code that begins elsewhere in memory or takes
    strides of another tensor, which may lie in another way.
    """
    given = arguments(use)
    if use.dense is None or given.get("storage_offset") is not None:
        return None
    x, order = use.dense
    if not all(_may_follow(stride, x.index) for stride in given["stride"]):
        return None
    bounds = list(range(len(order) + 1))
    while True:
        runs = [Run(order[first:last], order[last:]) for first, last in pairwise(bounds)]
        left = _run_that_is_left(runs, x.shape, size, given["stride"])
        if left is None:
            return runs
        if not 0 < left < len(runs):
            return None
        del bounds[left]


def arguments(use: SizeUse) -> Mapping[str, Any]:
    return dict(zip(("size", "stride", "storage_offset"), use.args[1:], strict=False)) | dict(use.kwargs)


def _may_follow(stride: Any, tensor: int) -> bool:
    """Whether a stride is made of lengths, numbers and the tensor's own strides."""
    leaves = leaves_of(expression_of(stride)) if isinstance(stride, int) else [("stride", None)]
    return all(leaf[0] != "stride" or leaf[1] == tensor for leaf in leaves)


def _run_that_is_left(
    runs: Sequence[Run], shape: Sequence[int], size: Sequence[int], stride: Sequence[int]
) -> int | None:
    """Fills in the steps. Returns the number of a run that has to be joined with the one before it."""
    units = [prod(shape[d] for d in run.inside) for run in runs]
    lengths = [prod(shape[d] for d in run.axes) for run in runs]
    for k, (n, step) in enumerate(zip(size, stride, strict=True)):
        if n > 1:
            at = next((i for i, unit in enumerate(units) if unit <= step and lengths[i] > 1), -1)
            runs[at].steps[k], between = divmod(step, units[at])
            if between or at < 0:
                return at + 1
    reach = [sum(step * (size[k] - 1) for k, step in run.steps.items()) for run in runs]
    return next((i for i in range(len(runs)) if reach[i] >= lengths[i]), None)
