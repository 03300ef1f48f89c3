"""`torch.export` programs: the model as a graph that runs without its Python code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.utils._pytree import tree_map

from secateur.bench import RUNTIMES, Loaded
from secateur.capture import FreeAxis, call_to_trace, quiet, tracing
from secateur.formats.interface import Interface


def write_program(model: nn.Module, interface: Interface, path: Path, free: Sequence[FreeAxis]) -> None:
    call = call_to_trace(model, interface.example, free)
    shapes = tree_map(lambda name: name and torch.export.Dim.DYNAMIC, call.dynamic_shapes)
    with tracing(model, "torch.export", "torch.export.export(model, args)"):
        program = torch.export.export(model, call.args, call.kwargs, dynamic_shapes=shapes)
        torch.export.save(program, path)


def open_program(path: Path, threads: int) -> Loaded:
    with quiet():
        module = torch.export.load(path).module()
    return RUNTIMES["eager"].load(module, None, threads)
