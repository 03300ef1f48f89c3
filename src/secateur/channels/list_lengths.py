"""Whether the code runs with fewer modules in its lists, and which of its numbers say how long they are.

A loop over `range(self.num_experts)` leaves no trace of where its length came from. With the old number it would run
past the end of a shorter list and fail; so the number with which the code runs is the one. Nor does `len(self.experts)`
leave a trace; where a mean is taken with it, the code would compute with another number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from secateur.capture import Attribute, Trace
from secateur.channels.dissection import Dissection
from secateur.channels.select import Cuttable, NothingToCut, plan_of, select
from secateur.couple import Bundle, Ids, Reason
from secateur.plans import Plan
from secateur.surgery import ProofFailed, dry_run

_WHY = Reason("with fewer modules in its list, the code does not run, or computes with other numbers")


def with_lengths(dissection: Dissection, module: nn.Module, example_inputs: Any) -> Dissection:
    """The dissection with the numbers that follow its lists. Lists that no number follows stay whole."""
    bundles = tuple(b for b in dissection.bundles if any(map(dissection.lists, b.groups)))
    if not bundles:
        return dissection
    with suppress(NothingToCut):
        selection = select(dissection, Cuttable(bundles, {}, ()), _one_of_each)
        trial = plan_of(selection, dissection, module, "layer", "none", example_inputs)
        for lengths in _tries(trial, dissection.trace):
            told = replace(dissection, lengths=lengths)
            with suppress(ProofFailed):
                trial = plan_of(selection, told, module, "layer", "none", example_inputs)
                dry_run(module, trial, same_numbers=True)
                return told
    others = [bundle for bundle in dissection.bundles if bundle not in bundles]
    refused = [(group, _WHY) for bundle in bundles for group in bundle.groups]
    return replace(dissection, bundles=others, refused=[*dissection.refused, *refused])


def _one_of_each(bundles: Sequence[Bundle]) -> Ids:
    return np.concatenate([group.units[: b.removed(group, 1)] for b in bundles for group in b.groups])


def _tries(trial: Plan, trace: Trace) -> Iterator[Mapping[str, Sequence[Attribute]]]:
    """By list, no number at all; then the numbers of one name that are as long as the list that they are beside."""
    named: dict[tuple[str | int, ...], dict[str, list[Attribute]]] = {}
    for path, cut in (trial.lists or {}).items():
        for at, size in trace.attributes.items():
            if at[0] in (path, path.rpartition(".")[0]) and size == cut.length and at not in trial.attributes:
                named.setdefault(at[1], {}).setdefault(path, []).append(at)
    yield {}
    yield from named.values()
