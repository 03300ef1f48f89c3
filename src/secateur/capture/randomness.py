"""Random numbers of a watched model: drawn so that nobody else's are used up."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch

from secateur.base import tensors_in


class PrivateRandom:
    """Lets operations draw from generators of their own. torch's generators serve all threads, and the user's go on."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self.drawn = False
        """Whether anything was random."""

    def run(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not _is_random(op):
            return op(*args, **kwargs)
        self.drawn = True
        if (dropout := _dropout_position(op)) is not None:  # fused with it, and without a form that takes a generator
            return op(*args[:dropout], *(0.0 for _ in args[dropout : dropout + 1]), *args[dropout + 1 :], **kwargs)
        device = torch.device(kwargs.get("device") or next((item.device for item in tensors_in(args)), "cpu"))
        if device.type == "meta":  # draws nothing
            return op(*args, **kwargs)
        if (seedable := _seedable(op)) is not None:
            return seedable(*args, **{**kwargs, "generator": self._generator(device)})
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            return op(*args, **kwargs)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


@cache
def _is_random(op: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in op.tags


@cache
def _dropout_position(op: Any) -> int | None:
    names = [argument.name for argument in op._schema.arguments]
    fused = (name for name in ("dropout_p", "dropout", "p") if name in names and "generator" not in names)
    return next(map(names.index, fused), None)


@cache
def _seedable(op: Any) -> Any:
    """The form of a random operation that takes a generator; None where there is none."""
    if any(argument.name == "generator" for argument in op._schema.arguments):
        return op
    name = op._overloadname
    return getattr(op.overloadpacket, "generator" if name == "default" else f"{name}_generator", None)


@contextmanager
def python_random_kept() -> Iterator[None]:
    """The global generators of Python and NumPy are afterwards where they were.

    They have no form for one thread: another that draws from them just then may draw the same numbers again.
    """
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    try:
        yield
    finally:
        if random.getstate() != python:
            random.setstate(python)
        if pickle.dumps(np.random.get_state(legacy=False)) != pickle.dumps(numpy):
            np.random.set_state(numpy)


@contextmanager
def without_random_effects() -> Iterator[None]:
    """The global generators of torch, NumPy and Python are afterwards where they were."""
    with python_random_kept(), torch.random.fork_rng(_cuda_devices()):
        yield


def _cuda_devices() -> range:
    return range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
