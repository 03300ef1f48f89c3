"""Which axes of a model's inputs may change: the model itself is asked, with inputs of another size."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from secateur.base import UsageError, as_call, copied, in_brief, input_tensors, require_one_of
from secateur.capture import FreeAxis, batch_axes

KINDS = ("batch", "sequence", "image")
DYNAMIC = ("batch", "sequence")
"""What may change unless somebody says otherwise: images mostly come in one size, and runtimes make use of that."""


@dataclass(frozen=True)
class FoundAxis:
    kind: str
    axis: FreeAxis
    others: tuple[int, ...]
    """Other sizes than the example's that the model takes."""
    refusal: str = ""
    """Why the model takes no other."""


def require_kinds(dynamic: Collection[str]) -> None:
    if isinstance(dynamic, str):
        raise UsageError(f"dynamic is {dynamic!r}; pass the kinds of axes in a list, such as [{dynamic!r}].")
    for kind in dynamic:
        require_one_of("kind of axis", kind, KINDS)


def find_axes(model: nn.Module, inputs: Any, dynamic: Collection[str]) -> list[FoundAxis]:
    """The batch always, whether the model allows it or not; of the other kinds those that the model allows.

    Args:
        model: in evaluation mode.
        inputs: in the model's own order.
        dynamic: the kinds to look for.
    """
    tensors, found = input_tensors(inputs), []
    for axis in batch_axes(model, inputs):
        sizes = [size for size in (1, axis.size + 1) if size != axis.size]
        found.append(_tried("batch", model, inputs, axis, sizes))
    if "sequence" in dynamic:
        found += _sequences(model, inputs, tensors)
    if "image" in dynamic:
        found += _image_axes(model, inputs, tensors)
    return found


def _sequences(model: nn.Module, inputs: Any, tensors: list[Tensor]) -> Iterator[FoundAxis]:
    """Axes of one length belong together, as those of tokens and their mask. Which are features, the model tells."""
    lengths = [size for tensor in tensors if tensor.ndim in (2, 3) for size in tensor.shape[1:]]
    known = 0
    for length in dict.fromkeys(lengths):
        name = f"sequence_{known + 1}" if known else "sequence"
        for places in _places(tensors, length):
            found = _tried("sequence", model, inputs, FreeAxis(name, length, places), _smaller(length))
            if found.others or any(not tensors[number].is_floating_point() for number, _ in places):
                known += 1
                yield found
                break


def _places(tensors: list[Tensor], length: int) -> Iterator[frozenset[tuple[int, int]]]:
    """All axes of this length; then, as features may happen to have it, too, the second and the third axis alone."""
    everywhere = [
        (i, a) for i, tensor in enumerate(tensors) for a in range(1, tensor.ndim) if tensor.shape[a] == length
    ]
    low = [(number, axis) for number, axis in everywhere if tensors[number].ndim in (2, 3)]
    groups = (everywhere, [place for place in low if place[1] == 1], [place for place in low if place[1] == 2])
    return iter(dict.fromkeys(frozenset(group) for group in groups if group))


def _image_axes(model: nn.Module, inputs: Any, tensors: list[Tensor]) -> Iterator[FoundAxis]:
    images = [(i, tensor) for i, tensor in enumerate(tensors) if tensor.ndim >= 4]
    for position, name in ((3, "depth"), (2, "height"), (1, "width")):
        sizes = [tensor.shape[-position] for _, tensor in images if tensor.ndim >= position + 2]
        if sizes:
            places = {
                (i, t.ndim - position) for i, t in images if t.ndim >= position + 2 and t.shape[-position] == sizes[0]
            }
            yield _tried("image", model, inputs, FreeAxis(name, sizes[0], frozenset(places)), _smaller(sizes[0]))


def _smaller(size: int) -> list[int]:
    """A larger one may lie beyond a table of positions, which ends the process on a GPU. Some models take even sizes
    only."""
    return [other for other in dict.fromkeys((size - 1, size // 2)) if other > 1]


def _tried(kind: str, model: nn.Module, inputs: Any, axis: FreeAxis, sizes: list[int]) -> FoundAxis:
    taken, refusal = [], "the example is too short to try another."
    for size in sizes:
        args, kwargs = copied(*as_call(axis.resized(inputs, size)))
        try:
            model(*args, **kwargs)
        except Exception as error:  # whatever the model says to a size that it does not take
            refusal = f"the model takes no other ({in_brief(error)})."
        else:
            taken.append(size)
            if kind != "batch":
                break
    return FoundAxis(kind, axis, tuple(taken), "" if taken else refusal)
