"""A file that was written, run in its runtime and compared with PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from secateur.base import SecateurError, batch_of, in_brief
from secateur.bench import RUNTIMES, Agreement, Expected, Loaded, agreement, expected_outputs, require_agreement
from secateur.formats.kinds import Format

__all__ = ["Written", "run_and_compare", "write_and_compare"]


@dataclass(frozen=True)
class Written:
    file: Path
    loaded: Loaded
    expected: list[Expected]
    found: Agreement
    precision: str
    """Of the weights."""
    fixed_because: str | None
    """Why it takes the batch of the example only; None if it takes any."""


def write_and_compare(model: nn.Module, example_inputs: Any, chosen: Format, file: Path) -> Written:
    """Takes a batch of any size where the model's code allows that, and the example's otherwise."""
    expected = expected_outputs(model, example_inputs)
    precision = RUNTIMES["eager"].load(model, example_inputs, 1).precision

    def write(expected: list[Expected], fixed_because: str | None) -> Written:
        chosen.write(model, example_inputs, file, fixed_because is None)
        loaded, found = run_and_compare(chosen, file, expected)
        require_agreement(found, precision, chosen.runtime_name)
        return Written(file, loaded, expected, found, precision, fixed_because)

    why = "the inputs have no axis for it."
    if batch_of(example_inputs):
        try:
            return write(expected, None)
        except SecateurError as error:
            why = str(error)
    return write(expected[:1], why)


def run_and_compare(chosen: Format, file: Path, expected: list[Expected]) -> tuple[Loaded, Agreement]:
    try:
        loaded = chosen.open(file, torch.get_num_threads())
        return loaded, agreement(loaded, expected)
    except SecateurError:
        raise
    except Exception as error:  # runtimes raise anything at all
        raise SecateurError(
            f"The exported model cannot run in {chosen.runtime_name} ({in_brief(error)}); export to another format."
        ) from error
