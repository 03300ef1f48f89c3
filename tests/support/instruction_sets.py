"""The instruction sets that the compiled kernels have code for, and other ones than the best that the processor has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_char_p

from secateur import UsageError
from secateur.sparse import native

__all__ = ["instruction_set", "supported_instruction_sets", "using_instruction_set"]


def instruction_set() -> str:
    """The one that the kernels use."""
    function = native._library().secateur_instruction_set
    function.restype = c_char_p
    name: bytes = function()
    return name.decode()


def supported_instruction_sets() -> tuple[str, ...]:
    """Those that this processor can run, the best first."""
    usual = instruction_set()
    try:
        return tuple(name for name in ("avx512", "avx2", "baseline") if _use(name))
    finally:
        _use(usual)


@contextmanager
def using_instruction_set(name: str) -> Iterator[None]:
    """For all layers and threads."""
    usual = instruction_set()
    if not _use(name):
        raise UsageError(f"This processor cannot run {name!r}; choose from {', '.join(supported_instruction_sets())}.")
    try:
        yield
    finally:
        _use(usual)


def _use(name: str) -> bool:
    return bool(native._library().secateur_use_instruction_set(name.encode()))
