"""A file that was written, run in its runtime and compared with PyTorch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch
from torch import nn

from secateur.base import SecateurError, explaining, input_tensors
from secateur.bench import RUNTIMES, Agreement, Expected, Loaded, agreement, expect, require_agreement
from secateur.formats.axis_search import FoundAxis, find_axes
from secateur.formats.interface import Interface
from secateur.formats.known_formats import Format


@dataclass(frozen=True)
class CheckedFile:
    format: Format
    path: Path
    """In a folder of its own."""
    interface: Interface
    loaded: Loaded
    expected: list[Expected]
    """On the example inputs, and on inputs of other sizes where it takes them."""
    found: Agreement
    precision: str
    """Of the weights."""
    axes: list[FoundAxis]
    fixed_because: dict[str, str]
    """Why axes of the inputs have the size of the example only, by name."""

    @property
    def file_bytes(self) -> int:
        """Of all files, where there are several."""
        return sum(file.stat().st_size for file in self.path.parent.iterdir())

    @property
    def shapes(self) -> dict[str, list[int | str]]:
        """Of the inputs, with the names of axes that may change."""
        tensors = dict(zip(self.interface.names.inputs, input_tensors(self.interface.example), strict=True))
        shapes: dict[str, list[int | str]] = {name: list(tensor.shape) for name, tensor in tensors.items()}
        for found in self.axes:
            for number, axis in found.axis.places if found.axis.name not in self.fixed_because else ():
                list(shapes.values())[number][axis] = found.axis.name
        return shapes


def write_and_compare(
    model: nn.Module, interface: Interface, chosen: Format, path: Path, dynamic: Collection[str]
) -> CheckedFile:
    """Axes may change as far as the model, torch's exporter and the runtime allow; others have the example's size."""
    axes = find_axes(model, interface.example, dynamic)
    fixed = {found.axis.name: found.refusal for found in axes if not found.others}
    if not axes:
        fixed["batch"] = "the inputs have no axis for it."
    elif "batch" not in dynamic:
        fixed["batch"] = "as asked."
    movable = [found for found in axes if found.axis.name not in fixed]
    kinds = list(dict.fromkeys(found.kind for found in movable))
    precision = RUNTIMES["eager"].load(model, interface.example, 1).precision
    refusals: dict[frozenset[str], str] = {}

    def write(allowed: tuple[str, ...]) -> CheckedFile:
        free = [found for found in movable if found.kind in allowed]
        chosen.write(model, interface, path, [found.axis for found in free])
        expected = list(_expected(model, interface, axes, free))
        loaded, found = run_and_compare(chosen, path, expected)
        require_agreement(found, precision, chosen.runtime_name)
        others = {each.axis.name: refusals[frozenset({*allowed, each.kind})] for each in movable if each not in free}
        return CheckedFile(chosen, path, interface, loaded, expected, found, precision, axes, {**fixed, **others})

    for count in range(len(kinds), 0, -1):
        for allowed in combinations(kinds, count):
            try:
                return write(allowed)
            except SecateurError as error:
                refusals[frozenset(allowed)] = str(error)
    return write(())


def _expected(
    model: nn.Module, interface: Interface, axes: Sequence[FoundAxis], free: Sequence[FoundAxis]
) -> Iterator[Expected]:
    """On the example, then on other batches, the last of them with another size of every axis that is free."""
    own = {found.axis.name: found.axis.size for found in axes} or {"batch": 0}
    yield expect(model, interface.example, own)
    rows = max((len(found.others) for found in free), default=0)
    for row in range(rows):
        inputs, sizes = interface.example, dict(own)
        for found in free:
            if (other := row - rows + len(found.others)) >= 0:
                sizes[found.axis.name] = found.others[other]
                inputs = found.axis.resized(inputs, found.others[other])
        yield expect(model, inputs, sizes)


def run_and_compare(chosen: Format, path: Path, expected: list[Expected]) -> tuple[Loaded, Agreement]:
    refused = f"The exported model cannot run in {chosen.runtime_name}"
    with explaining(refused, "export to another format.", SecateurError, but=(SecateurError,)):
        loaded = chosen.open(path, torch.get_num_threads())
        return loaded, agreement(loaded, expected)
