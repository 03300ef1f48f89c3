"""Where code asks values a yes or no, such as whether a mask is all ones, the way of the other answer is taken, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from traceback import walk_tb
from typing import Any, TypeVar

from secateur.capture.recorder import CallRecorder
from secateur.capture.trace import OpCall, Value

_MOST_WAYS = 8

T = TypeVar("T")


@dataclass(frozen=True)
class Way:
    """A pass, and what it was answered; as the values say where that is nothing."""

    training: bool
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    answers: list[bool]
    free: int = 0
    """Answers before this one have been given both ways."""

    def others(self) -> list[Way]:
        """The ways that part from this one at each of its answers."""
        return [
            Way(self.training, self.args, self.kwargs, [*self.answers[:i], not self.answers[i]], i + 1)
            for i in range(self.free, len(self.answers))
        ]


def take_ways(run: Callable[[Way], T], to_take: Sequence[Way], recorder: CallRecorder) -> list[T] | None:
    """What comes of these ways and of all that part from them, but for those on which the code refuses to go on; None
    where they are not all known: one fails, there are too many, or the code looked at more than a yes or no."""
    results: list[T] = []
    to_take = list(to_take)
    most = _MOST_WAYS + sum(not way.answers for way in to_take)
    for taken in range(most + 1):
        if recorder.asked_more or taken + len(to_take) > most:
            return None
        if not to_take:
            return results
        way = to_take.pop()
        recorder.answers, recorder.answered = way.answers, []
        try:
            results.append(run(way))
        except Exception as error:  # whatever the code meets where values and answers do not fit together
            if not _is_refusal(error, recorder):
                return None
        to_take += replace(way, answers=recorder.answered).others()
    return None


def _is_refusal(error: Exception, recorder: CallRecorder) -> bool:
    """Whether the code itself raised the error right after an answer, as `assert` does: no value had a part in it, so
    the answer ends every pass there."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    raised_by = str(frame.f_globals.get("__name__")).partition(".")[0]
    return recorder.calls[-1].op == "_local_scalar_dense" and raised_by not in ("torch", "secateur")


def within_reach(
    unread: Sequence[Value], visible: Mapping[str, Set[int]], calls: Sequence[OpCall]
) -> Iterator[tuple[str, int, int]]:
    """For each module with tensors that no pass read, the values, by index, and their axes that those could meet: what
    the code of the modules around it holds, along any axis of a length that they have."""
    if not unread:
        return
    held = {module: set(indices) for module, indices in visible.items()}
    shapes: dict[int, tuple[int, ...]] = {}
    for call in calls:
        own = {value.index: value.shape for value in (*call.tensors, *call.outputs) if value is not None}
        held.setdefault(call.module, set()).update(own)
        shapes.update(own)
    lengths: dict[str, set[int]] = {}
    for leaf in unread:
        for name in leaf.names:
            lengths.setdefault(name.rpartition(".")[0], set()).update(n for n in leaf.shape if n > 1)
    for module, own_lengths in lengths.items():
        parts = module.split(".")
        for index in set().union(*(held.get(".".join(parts[:depth]), ()) for depth in range(len(parts)))):
            for axis, length in enumerate(shapes.get(index, ())):
                if length in own_lengths:
                    yield module, index, axis
