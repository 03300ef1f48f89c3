"""Whether a file computes in its runtime what the model computes in PyTorch, and how far off it is at most."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from secateur.base import SecateurError, UsageError, batch_of, explaining, in_signature_order, with_batch
from secateur.bench.differences import allowed_difference, difference
from secateur.bench.runtimes import RUNTIMES, Loaded


@dataclass(frozen=True)
class Expected:
    """What the model computes in PyTorch, by its inputs."""

    inputs: Any
    outputs: Sequence[np.ndarray]

    @property
    def batch(self) -> int:
        return batch_of(self.inputs)


@dataclass(frozen=True)
class Agreement:
    """The largest differences found, over all batches that were compared and all outputs."""

    batches: tuple[int, ...]
    absolute: float
    relative: float
    """To the largest number of the output; infinite where the outputs do not even compare."""
    where: str
    """The output that differs most, relatively."""


def expected_outputs(model: nn.Module, example_inputs: Any) -> list[Expected]:
    """On the example inputs first, then on one example and on one more than there are, where the model itself takes so
    many."""
    own, found = batch_of(example_inputs), [_expected(model, example_inputs)]
    for batch in (1, own + 1) if own else ():
        with suppress(UsageError):
            if batch != own:
                found.append(_expected(model, with_batch(example_inputs, batch)))
    return found


def _expected(model: nn.Module, example_inputs: Any) -> Expected:
    inputs = in_signature_order(model, example_inputs)
    remedy = "pass inputs that model(…) accepts, as a tensor, a tuple or a dict of keyword arguments."
    with explaining("The model failed on the example inputs", remedy):
        return Expected(inputs, RUNTIMES["eager"].load(model, inputs, 1).outputs(inputs))


def agreement(loaded: Loaded, expected: Sequence[Expected]) -> Agreement:
    absolute, relative, where = 0.0, 0.0, "every output"
    for each in expected:
        outputs = loaded.outputs(each.inputs)
        if len(outputs) != len(each.outputs):
            raise SecateurError(
                f"The exported model returns {len(outputs)} tensors, and the model in PyTorch {len(each.outputs)}; "
                "let it return each of them once."
            )
        for i, (wanted, found) in enumerate(zip(each.outputs, outputs, strict=True)):
            own_absolute, own_relative = difference(wanted, found)
            absolute = max(absolute, own_absolute)
            if own_relative > relative:
                relative, where = own_relative, f"output {i + 1} of {len(outputs)} with batch {each.batch}"
    return Agreement(tuple(each.batch for each in expected), absolute, relative, where)


def require_agreement(found: Agreement, precision: str, runtime: str) -> None:
    allowed = allowed_difference(precision)
    if found.relative > allowed:
        by = (
            f"by {found.absolute:.1e}, which is {found.relative:.1e} of its largest number, and {allowed:g} is allowed"
            if np.isfinite(found.relative)
            else "in its shape or NaNs"
        )
        raise SecateurError(
            f"The exported model computes something else in {runtime}: {found.where} differs from PyTorch's {by}; "
            "nothing was kept, so try another format."
        )
