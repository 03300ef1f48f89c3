"""A transformers model whose config says its widths loads with `from_pretrained`: the file that it takes."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from secateur.base import read_regular
from secateur.checkpoint.reading import Opened
from secateur.plans import Plan
from secateur.surgery import expressed_config

CONFIG_FILE = "config.json"


def config_of_pruned(model: nn.Module, plan: Plan | None) -> str:
    """The text of `config.json`."""
    config = copy.deepcopy(expressed_config(model, plan))
    config.architectures = [type(model).__name__]
    config.dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return str(config.to_json_string(use_diff=False))  # a width may become what is usual


def stored_numbers(opened: Opened) -> dict[tuple[str | int, ...], int]:
    """Those in the `config.json` of a checkpoint; none where it has no such file, or one that is damaged."""
    with suppress(OSError, ValueError, RecursionError):
        if opened.manifest.not_from_pretrained is None:
            return dict(_numbers(json.loads(read_regular(opened.folder / CONFIG_FILE)), ()))
    return {}


def _numbers(stored: Any, way: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], int]]:
    if type(stored) is int and stored > 0:
        yield way, stored
    elif isinstance(stored, dict | list):
        for key, value in stored.items() if isinstance(stored, dict) else enumerate(stored):
            yield from _numbers(value, (*way, key))
