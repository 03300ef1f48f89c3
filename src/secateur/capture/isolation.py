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
def plain_execution() -> Iterator[set[int]]:
    """No gradients and no compiled regions in this thread: they would hide what happens. Other captures wait.

    Yields the threads that run without compiled regions, to which a thread may add its helpers.
    """
    with one_at_a_time, torch.no_grad(), _eager_in_this_thread() as threads:
        yield threads


@contextmanager
def _eager_in_this_thread() -> Iterator[set[int]]:
    import torch._dynamo.eval_frame

    compiler: Any = torch._dynamo.eval_frame
    ours = _ThreadStance(compiler._stance)
    try:
        compiler._set_stance(ours)
        yield ours.threads
    finally:
        ours.threads.clear()  # somebody may have remembered it, to put it back later
        if compiler._stance is ours:
            compiler._set_stance(ours.others)


class _ThreadStance:
    """How the compiler behaves: some threads run eagerly, and the others as before."""

    def __init__(self, others: Any) -> None:
        self.others = others
        self.threads = {threading.get_ident()}

    @property
    def stance(self) -> str:
        return "force_eager" if threading.get_ident() in self.threads else str(self.others.stance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.others, name)
