"""`torch.export` programs: the model as a graph that runs without its Python code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from secateur.bench import RUNTIMES, Loaded
from secateur.capture import call_to_trace, quiet, tracing


def write_program(model: nn.Module, example_inputs: Any, path: Path, any_batch: bool) -> None:
    call = call_to_trace(model, example_inputs, any_batch)
    with tracing(model, "torch.export", "torch.export.export(model, args)"):
        program = torch.export.export(model, call.args, call.kwargs, dynamic_shapes=call.dynamic_shapes)
        torch.export.save(program, path)


def open_program(path: Path, threads: int) -> Loaded:
    with quiet():
        module = torch.export.load(path).module()
    return RUNTIMES["eager"].load(module, None, threads)
