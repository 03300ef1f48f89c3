"""Several processes that repair one model together, each on examples of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from torch import Tensor, distributed

from secateur.base import SecateurError, in_brief

Given = TypeVar("Given")


class Processes:
    """Those of a group; without a group, this one alone."""

    def __init__(self, group: distributed.ProcessGroup | None = None) -> None:
        self._group = group
        self.count = 1 if group is None else distributed.get_world_size(group)

    def each(self, work: Callable[[], Given]) -> list[Given]:
        """What `work` gives in each of them. What fails in one fails in all, so that none waits for it."""
        if self._group is None:
            return [work()]
        value: Given | None = None
        error: Exception | None = None
        try:
            value = work()
        except Exception as raised:
            error = raised
        told: list[Any] = [None] * self.count
        distributed.all_gather_object(told, (value, None if error is None else in_brief(error)), self._group)
        if error is not None:
            raise error
        for number, (_, reason) in enumerate(told):
            if reason is not None:
                raise SecateurError(f"Process {number} failed: {reason}.")
        return [value for value, _ in told]

    def here(self, work: Callable[[], Given]) -> Given:
        """What `work` gives in this one, after it has succeeded in all."""
        given: list[Given] = []
        self.each(lambda: given.append(work()))
        return given[0]

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """Over all of them, in place."""
        if self._group is not None:
            for tensor in tensors:
                distributed.all_reduce(tensor, group=self._group)

    def agree(self, tensors: Iterable[Tensor]) -> None:
        """All take the values of the first: those of other processors may differ in the last bit."""
        if self._group is not None:
            first = distributed.get_global_rank(self._group, 0)
            for tensor in tensors:
                distributed.broadcast(tensor, first, self._group)
