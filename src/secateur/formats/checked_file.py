"""A file that was written, run in its runtime and compared with PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from secateur.base import SecateurError, batch_of, explaining
from secateur.bench import RUNTIMES, Agreement, Expected, Loaded, agreement, expected_outputs, require_agreement
from secateur.formats.known_formats import Format


@dataclass(frozen=True)
class CheckedFile:
    format: Format
    path: Path
    """In a folder of its own."""
    loaded: Loaded
    expected: list[Expected]
    """On the example inputs, and on other batches where it takes them."""
    found: Agreement
    precision: str
    """Of the weights."""
    fixed_because: str | None
    """Why it takes the batch of the example only; None if it takes any."""

    @property
    def file_bytes(self) -> int:
        """Of all files, where there are several."""
        return sum(file.stat().st_size for file in self.path.parent.iterdir())


def write_and_compare(model: nn.Module, example_inputs: Any, chosen: Format, path: Path) -> CheckedFile:
    """Takes a batch of any size where the model's code allows that, and the example's otherwise."""
    expected = expected_outputs(model, example_inputs)
    precision = RUNTIMES["eager"].load(model, example_inputs, 1).precision

    def write(expected: list[Expected], fixed_because: str | None) -> CheckedFile:
        chosen.write(model, example_inputs, path, fixed_because is None)
        loaded, found = run_and_compare(chosen, path, expected)
        require_agreement(found, precision, chosen.runtime_name)
        return CheckedFile(chosen, path, loaded, expected, found, precision, fixed_because)

    why = "the inputs have no axis for it."
    if batch_of(example_inputs):
        try:
            return write(expected, None)
        except SecateurError as error:
            why = str(error)
    return write(expected[:1], why)


def run_and_compare(chosen: Format, path: Path, expected: list[Expected]) -> tuple[Loaded, Agreement]:
    refused = f"The exported model cannot run in {chosen.runtime_name}"
    with explaining(refused, "export to another format.", SecateurError, but=(SecateurError,)):
        loaded = chosen.open(path, torch.get_num_threads())
        return loaded, agreement(loaded, expected)
