"""Passes over a network that is to be used afterwards: what a model remembers of its calls is forgotten again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from secateur.capture import unchanged
from secateur.sparse.dense import DenseLayer


@contextmanager
def leaving_no_trace(network: nn.Module) -> Iterator[None]:
    """Buffers keep their numbers, and modules what they hold, hooks among them."""
    modules = (module for module in network.modules() if not isinstance(module, DenseLayer))  # whose buffers are large
    before = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers(recurse=False)]
    try:
        with unchanged(network):
            yield
    finally:
        for buffer, numbers in before:
            buffer.copy_(numbers)
