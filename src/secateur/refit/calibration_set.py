"""The examples that a repair learns from: as many as asked for, as memory allows, in a few batches side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from secateur.base import (
    UsageError,
    as_call,
    batch_of,
    count_text,
    input_tensors,
    interruptible,
    uninterrupted,
    with_batch,
)
from secateur.capture import without_random_effects
from secateur.refit.fresh_passes import fresh_pass

BATCHES = 4
"""Each runs in two threads, and libraries keep workers for every thread that computes."""
MOST_BATCHES = 16
"""Where examples of different shapes cannot share a batch."""
FEWEST = 2
"""Examples: something is to be fitted, and something held back."""


def calibration_set(model: nn.Module, batches: Any, examples: int, memory: float) -> list[Any]:
    """Batches of inputs. The last one is to be held back from the fit."""
    found = read_batches(batches, examples)
    each = _bytes_of_an_example(model, found[0])
    fitting = min(examples, int(memory / max(1, 2 * each)))  # in the dense and in the pruned model
    together = _joined(_first(found, max(fitting, FEWEST)))
    return _in_pieces(together)


def count_examples(batches: Iterable[Any]) -> int:
    return sum(batch_of(batch) for batch in batches)


def read_batches(batches: Any, examples: int) -> list[Any]:
    """The first examples of what a user gives as calibration data."""
    if isinstance(batches, Tensor):
        batches = [batches]
    if isinstance(batches, Mapping | nn.Module | str) or not isinstance(batches, Iterable):
        raise UsageError(
            f"The calibration data is a {type(batches).__name__}; give batches of inputs, such as a list or a loader."
        )
    found: list[Any] = []
    for batch in batches:
        as_call(batch)
        if not batch_of(batch):
            raise UsageError("A calibration batch holds no tensor with examples; give the model's inputs.")
        if not all(tensor.isfinite().all() for tensor in input_tensors(batch) if tensor.is_floating_point()):
            raise UsageError("A calibration batch holds NaN or infinite numbers; leave such examples out.")
        found.append(batch)
        if count_examples(found) >= examples:
            break
    if (count := min(examples, count_examples(found))) < FEWEST:
        raise UsageError(
            f"Repair has {count_text(count, 'example')} to learn from; give at least {FEWEST}, better some hundred."
        )
    return _first(found, examples)


def share_of(batches: Sequence[Any], process: int, processes: int) -> list[Any]:
    """Of what all processes have read alike, the examples of one of them."""
    size = -(-count_examples(batches) // processes)
    size += -size % BATCHES  # so that the same examples are held back as in one process alone
    begin, end = process * size, (process + 1) * size
    shares, seen = [], 0
    for batch in batches:
        if mine := range(max(begin - seen, 0), min(end - seen, batch_of(batch))):
            shares.append(_part(batch, slice(mine.start, mine.stop)))
        seen += batch_of(batch)
    return shares


def _first(batches: list[Any], examples: int) -> list[Any]:
    taken: list[Any] = []
    for batch in batches:
        left = examples - count_examples(taken)
        if left > 0:
            taken.append(with_batch(batch, min(left, batch_of(batch))))
    return taken


def _joined(batches: list[Any]) -> list[Any]:
    """Batches of the same form become one; those with tensors that are not of the examples stay as they are."""
    by_form: dict[Any, list[Any]] = {}
    for number, batch in enumerate(batches):
        leaves, tree = tree_flatten(batch)
        size = batch_of(batch)
        alone = number if any(isinstance(leaf, Tensor) and leaf.shape[:1] != (size,) for leaf in leaves) else None
        form = [(leaf.shape[1:], leaf.dtype) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves]
        by_form.setdefault((str(tree), tuple(form), alone), []).append(batch)
    joined = [_one(group) if len(group) > 1 else group[0] for group in by_form.values()]
    return sorted(joined, key=batch_of, reverse=True)[:MOST_BATCHES]


def _one(group: list[Any]) -> Any:
    columns = zip(*(tree_flatten(batch)[0] for batch in group), strict=True)
    leaves = [torch.cat(items) if isinstance(items[0], Tensor) else items[0] for items in columns]
    return tree_unflatten(leaves, tree_flatten(group[0])[1])


def _in_pieces(batches: list[Any]) -> list[Any]:
    """At least one to fit and one to hold back: the largest is halved until there are enough.

    Every second example goes to the other half. Data may be sorted, by class or by length, and what is held back is to
    be like the rest.
    """
    pieces = list(batches)
    while len(pieces) < BATCHES and batch_of(largest := max(pieces, key=batch_of)) > 1:
        at = next(i for i, piece in enumerate(pieces) if piece is largest)
        pieces[at : at + 1] = [_part(largest, slice(0, None, 2)), _part(largest, slice(1, None, 2))]
    return pieces


def _part(batch: Any, some: slice) -> Any:
    size = batch_of(batch)

    def part(item: Any) -> Any:
        return item[some] if isinstance(item, Tensor) and item.shape[:1] == (size,) else item

    return tree_map(part, batch)


def _bytes_of_an_example(model: nn.Module, batch: Any) -> float:
    _, run = fresh_pass(model, with_batch(batch, 2))
    meter = _LiveBytes()
    with uninterrupted(patience=1), torch.no_grad(), without_random_effects(), meter:
        interruptible(run)
    return meter.most / 2


class _LiveBytes(TorchDispatchMode):
    """How much of what operators made was alive at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = op(*args, **(kwargs or {}))
        if not op.is_view:
            for tensor in out if isinstance(out, tuple | list) else (out,):
                if isinstance(tensor, Tensor):
                    storage = tensor.untyped_storage()
                    self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
            self._alive = {key: held for key, held in self._alive.items() if not held[0].expired()}
            self.most = max(self.most, sum(size for _, size in self._alive.values()))
        return out
