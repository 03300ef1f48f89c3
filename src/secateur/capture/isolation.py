"""What a capture changes, it changes for its own thread: other threads run as if nothing were there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

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
