"""Importing this makes torch, accelerate and typer do once, or not at all, what they do for nothing in every test."""

from __future__ import annotations

import typing
from functools import cache
from types import SimpleNamespace

import torch
import typer.testing
from accelerate.utils import imports, memory
from torch._export import utils as export_utils

# Every step of every optimizer looks for a package on the path, and every end of a run for those of other devices.
imports._is_package_available = cache(imports._is_package_available)

# Every end of a run collects garbage for a GPU's sake, over all that the tests have made so far.
memory.gc = SimpleNamespace(collect=lambda: None)

# Every call of a command makes all nine of them anew, from the annotations of their functions.
typer.testing._get_command = cache(typer.testing._get_command)

# An export asks for every one of torch's operators 27 times, once for each family of them, in case there are new ones.
export_utils._materialize_cpp_cia_ops = cache(export_utils._materialize_cpp_cia_ops)

# An export writes 5,000 kernels into tables by a function of two annotations: typing remembers what it made of one.
torch._ops.Callable = typing.Callable  # type: ignore[misc, assignment]

try:
    from torch.onnx._internal.exporter._registration import ONNXRegistry
except ImportError:
    pass  # without onnxscript there is nothing to export, and another version of torch is slower, not wrong
else:
    # The exporter reads the source of its 500 translations for every model anew: half the time that a small one takes.
    ONNXRegistry.from_torchlib = staticmethod(cache(ONNXRegistry.from_torchlib))  # type: ignore[method-assign]


def _seed_nothing(seed: int) -> None:
    """Where there is no such device, a seed for it is kept for later, with the text of every line of the call stack."""


for device in (torch.cuda, torch.xpu, torch.mtia):
    if not device.is_available():
        device.manual_seed_all = _seed_nothing
