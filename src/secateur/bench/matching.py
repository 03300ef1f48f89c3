"""Whether a file computes in its runtime what the model computes in PyTorch, and how far off it is at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    sizes: Mapping[str, int]
    """Of the inputs' axes that may change, by name, such as the batch."""


@dataclass(frozen=True)
class Agreement:
    """The largest differences found, over all sizes that were compared and all outputs."""

    absolute: float
    relative: float
    """To the largest number of the output; infinite where the outputs do not even compare."""
    where: str
    """The output that differs most, relatively."""


def expected_outputs(model: nn.Module, example_inputs: Any) -> list[Expected]:
    """On the example inputs first, then on one example and on one more than there are, where the model itself takes so
    many."""
    own = batch_of(example_inputs)
    found = [expect(model, example_inputs, {"batch": own})]
    for batch in (1, own + 1) if own else ():
        with suppress(UsageError):
            if batch != own:
                found.append(expect(model, with_batch(example_inputs, batch), {"batch": batch}))
    return found


def expect(model: nn.Module, example_inputs: Any, sizes: Mapping[str, int]) -> Expected:
    inputs = in_signature_order(model, example_inputs)
    remedy = "pass inputs that model(…) accepts, as a tensor, a tuple or a dict of keyword arguments."
    with explaining("The model failed on the example inputs", remedy):
        return Expected(inputs, RUNTIMES["eager"].load(model, inputs, 1).outputs(inputs), sizes)


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
                sizes = ", ".join(f"{name} {size}" for name, size in each.sizes.items())
                relative, where = own_relative, f"output {i + 1} of {len(outputs)} with {sizes}"
    return Agreement(absolute, relative, where)


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
