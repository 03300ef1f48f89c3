"""Training and evaluation mode, with every module's own flag put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["evaluating", "training"]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The whole model in evaluation mode."""
    with _flags_restored(model):
        model.eval()
        yield


@contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """Training mode; a model of which only parts are in evaluation mode keeps them so: its author froze them."""
    with _flags_restored(model):
        if not any(module.training for module in model.modules()):
            model.train()
        yield


@contextmanager
def _flags_restored(model: nn.Module) -> Iterator[None]:
    flags = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag
