"""TorchScript without torch's word that it is deprecated: models of the field still use it."""

from __future__ import annotations

import warnings
from typing import Any

import torch


def script(code: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(code)


def trace(code: Any, *inputs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(code, inputs)
