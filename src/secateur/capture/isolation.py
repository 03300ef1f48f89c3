"""What a capture changes, it changes for its own thread: other threads run as if nothing were there."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch

from secateur.base import tensors_in

# torch's modes belong to a thread, but the flags that it keeps about them do not outlast two threads that enter and
# leave modes in turns; nor do streams that two threads redirect.
one_at_a_time = threading.RLock()


@contextmanager
def plain_execution() -> Iterator[None]:
    """No gradients and no compiled regions in this thread: they would hide what happens. Other captures wait."""
    with one_at_a_time, torch.no_grad(), _eager_in_this_thread():
        yield


@contextmanager
def _eager_in_this_thread() -> Iterator[None]:
    import torch._dynamo.eval_frame

    compiler: Any = torch._dynamo.eval_frame
    ours = _ThreadStance(compiler._stance)
    try:
        compiler._set_stance(ours)
        yield
    finally:
        ours.thread = None  # somebody may have remembered it, to put it back later
        if compiler._stance is ours:
            compiler._set_stance(ours.others)


class _ThreadStance:
    """How the compiler behaves: one thread runs eagerly, and the others as before."""

    def __init__(self, others: Any) -> None:
        self.others = others
        self.thread: int | None = threading.get_ident()

    @property
    def stance(self) -> str:
        return "force_eager" if threading.get_ident() == self.thread else str(self.others.stance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.others, name)


class PrivateRandom:
    """Lets operations draw from generators of their own. torch's generators serve all threads, and the user's go on."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def run(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not _is_random(op):
            return op(*args, **kwargs)
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
        if repr(np.random.get_state(legacy=False)) != repr(numpy):
            np.random.set_state(numpy)


@contextmanager
def without_random_effects() -> Iterator[None]:
    """The global generators of torch, NumPy and Python are afterwards where they were."""
    with python_random_kept(), torch.random.fork_rng(_cuda_devices()):
        yield


def _cuda_devices() -> range:
    return range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
