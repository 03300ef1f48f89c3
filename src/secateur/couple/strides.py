"""`as_strided`: along which axes of a tensor each axis of a strided view of it steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

from secateur.capture import Expression, SizeUse, expression_of, leaves_of


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

    None where there is none, and for code that does not follow its tensor however that lies in memory: every stride has
    to be made from what `stride()` gave for that tensor.
    """
    x, given = use.args[0], arguments(use)
    leaves = [_own_strides(stride, x.index) for stride in given["stride"]]
    if given.get("storage_offset") is not None or not leaves or not all(leaves):
        return None
    order = leaves[0][0][3]
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


def _own_strides(stride: Any, tensor: int) -> list[Expression]:
    """The strides of the tensor that went into a stride; none where other lengths did, too."""
    leaves = list(leaves_of(expression_of(stride))) if isinstance(stride, int) else []
    own = [leaf for leaf in leaves if leaf[:2] == ("stride", tensor)]
    return own if all(leaf in own or leaf[0] in ("constant", "attribute") for leaf in leaves) else []


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
