"""The registry of test architectures, and the inputs they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Architecture:
    """One small model, built with seeded random weights, and what to call it with."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]  # a tensor, a tuple of positional arguments, or a dict of keyword arguments
    cuttable: bool = True  # False where nothing can be cut, and leaving the model alone is the right answer


ARCHITECTURES: dict[str, Architecture] = {}
Builder = TypeVar("Builder", bound=Callable[[], nn.Module])


def architecture(name: str, inputs: Callable[[], Any], *, cuttable: bool = True) -> Callable[[Builder], Builder]:
    """Enter a module class, or a function that makes a module, into the registry."""

    def enter(builder: Builder) -> Builder:
        if name in ARCHITECTURES:
            raise ValueError(f"{name} is registered twice")
        ARCHITECTURES[name] = Architecture(name, lambda: _seeded(builder, inputs), inputs, cuttable)
        return builder

    return enter


def _seeded(builder: Callable[[], nn.Module], inputs: Callable[[], Any]) -> nn.Module:
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = builder().eval()
        scramble(model)
        settle(model, inputs())
    return model


def call(model: nn.Module, inputs: Any) -> Any:
    """Call the model with one tensor, a tuple of positional arguments, or a dict of keyword arguments."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def scramble(model: nn.Module) -> None:
    """Make constant parameters and norm statistics differ by channel: a wrong slice of all-ones goes unseen."""
    for parameter in model.parameters():
        if parameter.numel() > 1 and parameter.min() == parameter.max():
            parameter.add_(0.2 * torch.randn_like(parameter))
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.add_(0.2 * torch.randn_like(buffer))
        elif name.endswith("running_var"):
            buffer.mul_(0.5 + torch.rand_like(buffer))


def settle(model: nn.Module, inputs: Any) -> None:
    """Give batch norms the statistics of the inputs and weights near one, or the signal dies on its way."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    kept = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
        if norm.affine:
            norm.weight.normal_(1.0, 0.2)
    call(model, inputs)
    for norm, momentum in zip(norms, kept, strict=True):
        norm.eval()
        norm.momentum = momentum
        norm.running_var.clamp_(min=0.02)


def floats(*shape: int, seed: int = 0) -> Callable[[], Tensor]:
    """Give a maker of one normal tensor, the same at every call."""
    return lambda: torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def images(channels: int = 3, size: int = 16, batch: int = 2) -> Callable[[], Tensor]:
    """Give a maker of square images."""
    return floats(batch, channels, size, size)


def tokens(vocabulary: int = 50, length: int = 12, batch: int = 2, seed: int = 0) -> Callable[[], Tensor]:
    """Give a maker of token ids."""
    return lambda: torch.randint(vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))


def together(*makers: Callable[[], Any]) -> Callable[[], tuple[Any, ...]]:
    """Give a maker of positional arguments, one from each maker."""
    return lambda: tuple(maker() for maker in makers)


def keywords(**makers: Callable[[], Any]) -> Callable[[], dict[str, Any]]:
    """Give a maker of keyword arguments, one from each maker."""
    return lambda: {name: maker() for name, maker in makers.items()}
