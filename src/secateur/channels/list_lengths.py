"""The numbers in the code that say how long a list of modules is, where a plan shortens it.

A loop over `range(self.num_experts)` leaves no trace of where its length came from. With the old number it would run
past the end of the shorter list and fail; so the number that lets the code run is the one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from torch import nn

from secateur.capture import Attribute, Trace
from secateur.plans import Plan
from secateur.surgery import ProofFailed, dry_run

Sizes = dict[Attribute, tuple[int, int]]


def with_lengths(module: nn.Module, plan: Plan, trace: Trace) -> Plan:
    """The plan with the lengths of its lists, where the code would not run without."""
    for sizes in _tries(plan, trace) if plan.lists else ():
        tried = replace(plan, attributes={**plan.attributes, **sizes})
        with suppress(ProofFailed):
            dry_run(module, tried)
            return tried
    return plan


def _tries(plan: Plan, trace: Trace) -> Iterator[Sizes]:
    """No number, then those of one name that are as long as the list beside them."""
    named: dict[tuple[str | int, ...], Sizes] = {}
    for path, cut in (plan.lists or {}).items():
        for at, size in trace.attributes.items():
            if at[0] in (path, path.rpartition(".")[0]) and size == cut.length and at not in plan.attributes:
                named.setdefault(at[1], {})[at] = size, len(cut.kept)
    yield {}
    yield from named.values()
