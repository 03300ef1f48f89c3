"""Where code asks values a yes or no, such as whether a mask is all ones, the way of the other answer is taken, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from torch import nn

from secateur.base import tensors_by_path
from secateur.capture.recorder import CallRecorder
from secateur.capture.trace import OpCall, Output, Value

_MOST_WAYS = 8


@dataclass(frozen=True)
class Way:
    """A pass, and what it was answered."""

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


def take_other_ways(
    model: nn.Module, run: Callable[[Way], Any], ways: Sequence[Way], recorder: CallRecorder
) -> list[Output] | None:
    """What the model returns on all other ways; None where they are not all known: one fails, there are too many, or
    the code looked at more than a yes or no."""
    outputs: list[Output] = []
    to_take = [other for way in ways for other in way.others()]
    for taken in range(_MOST_WAYS + 1):
        if recorder.asked_more or taken + len(to_take) > _MOST_WAYS:
            return None
        if not to_take:
            return outputs
        way = to_take.pop()
        model.train(way.training)
        recorder.answers, recorder.answered = way.answers, []
        try:
            returned = list(tensors_by_path(run(way)))
        except Exception:  # whatever the code meets where values and answers do not fit together
            return None
        outputs += [Output(path, recorder.value(tensor), in_training=True) for path, tensor in returned]
        to_take += Way(way.training, way.args, way.kwargs, recorder.answered, way.free).others()
    return None


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
