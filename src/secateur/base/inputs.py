"""What a model is called with: example inputs as the user gives them, and their batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from secateur.base.errors import UsageError
from secateur.base.interrupts import interruptible, uninterrupted
from secateur.base.loss_arguments import without_loss_arguments
from secateur.base.models import evaluating
from secateur.base.tensor_trees import Arguments, tensors_in


def as_call(example_inputs: Any) -> Arguments:
    """The arguments of `model(*args, **kwargs)`: of a tensor, a tuple of arguments, or a dict of keyword arguments."""
    if isinstance(example_inputs, Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping):
        if not all(isinstance(key, str) for key in example_inputs):
            raise UsageError(
                "example_inputs is a dict with keys that are no argument names; pass model(**example_inputs)."
            )
        return (), dict(example_inputs)
    if isinstance(example_inputs, tuple | list):
        return tuple(example_inputs), {}
    raise UsageError(
        f"example_inputs is a {type(example_inputs).__name__}; "
        "pass a tensor, a tuple of arguments, or a dict of keyword arguments of the model."
    )


def input_tensors(example_inputs: Any) -> list[Tensor]:
    """In the order of the call: what a graph, which has no inputs for anything else, takes."""
    return [item for item in tree_leaves(as_call(example_inputs)) if isinstance(item, Tensor)]


def batch_of(example_inputs: Any) -> int:
    """The length of the first axis of the first tensor that has one; 0 if none has."""
    return next((int(tensor.shape[0]) for tensor in input_tensors(example_inputs) if tensor.ndim), 0)


def with_batch(example_inputs: Any, batch: int) -> Any:
    """The same inputs with another batch, made of their own examples: every tensor whose first axis is the batch."""
    present = batch_of(example_inputs)

    def resized(item: Any) -> Any:
        if not isinstance(item, Tensor) or item.ndim == 0 or item.shape[0] != present:
            return item
        return item[torch.arange(batch, device=item.device) % present]

    return example_inputs if batch == present or not present else tree_map(resized, example_inputs)


def in_signature_order(model: nn.Module, example_inputs: Any) -> Any:
    """The same inputs with keyword arguments in the model's own order, others after them, and without None."""
    if not isinstance(example_inputs, Mapping):
        return example_inputs
    names = [name for name in signature(model.forward).parameters if name in example_inputs]
    names += sorted(example_inputs.keys() - set(names))
    return {name: example_inputs[name] for name in names if example_inputs[name] is not None}


def found_in_batch(
    model: nn.Module, loss: Callable[[nn.Module, Any], Any], batch: Any
) -> tuple[Any, ...] | dict[str, Any]:
    """What `loss` gives the model for the batch, one example of it where the model takes that, without labels and the
    like."""
    return _one_example(model, *_first_call(model, loss, batch))


def found_in_batches(
    model: nn.Module, loss: Callable[[nn.Module, Any], Any], batches: Iterable[Any], examples: int
) -> Iterator[tuple[Any, ...] | dict[str, Any]]:
    """The same for as many whole batches as hold `examples`. The model runs on the first of them alone."""
    needed: tuple[Any, ...] | dict[str, Any] | None = None
    found = 0
    for batch in batches:
        args, kwargs = _first_call(model, loss, batch, to_the_end=needed is None)
        if needed is None:
            needed = _one_example(model, args, kwargs)
        given = _by_name(model, args, kwargs)
        whole = args[: len(needed)] if isinstance(needed, tuple) else {name: given.get(name) for name in needed}
        yield whole
        found += batch_of(whole)
        if found >= examples:
            return


class _SeenEnough(BaseException):
    """Ends a pass that has shown what it was to show; no `except Exception` of a loss holds it up."""


def _first_call(
    model: nn.Module, loss: Callable[[nn.Module, Any], Any], batch: Any, to_the_end: bool = True
) -> Arguments:
    """What `loss` calls the model with first. The pass itself shows whether the model takes that."""
    calls: list[Arguments] = []

    def note(module: nn.Module, *call: Any) -> None:
        calls.append(call)
        if not to_the_end:
            raise _SeenEnough

    with uninterrupted(), evaluating(model), torch.no_grad():
        hook = model.register_forward_pre_hook(note, prepend=True, with_kwargs=True)
        try:
            with suppress(_SeenEnough):
                interruptible(loss, model, batch)
        finally:
            hook.remove()
    if not calls:
        raise UsageError("The loss function does not call the model it is given; pass example_inputs=….")
    return calls[0]


def _one_example(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | dict[str, Any]:
    with uninterrupted(), evaluating(model), torch.no_grad():
        args, kwargs = interruptible(_shortened, model, args, kwargs)
        args, kwargs = interruptible(without_loss_arguments, model, args, kwargs)
    return _by_name(model, args, kwargs) if args and kwargs else kwargs or args


def _by_name(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(signature(model.forward).parameters, args, strict=False)), **kwargs}


def _shortened(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """One example of a batch: what is counted and timed is to be that of one. Two where the model does not take one,
    or squeezes it away; all where the first axis is not that of the examples."""
    lengths = {tensor.shape[0] for tensor in tensors_in((args, kwargs)) if tensor.dim()}
    if len(lengths) != 1 or lengths == {1}:
        return args, kwargs
    one, two = (_first(count, args, kwargs) for count in (1, 2))
    ranks = _output_ranks(model, *two)
    if ranks is None:
        return args, kwargs
    return one if _output_ranks(model, *one) == ranks else two


def _first(count: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    def first(item: Any) -> Any:
        return item[:count] if isinstance(item, Tensor) and item.dim() else item

    return tree_map(first, (args, kwargs))  # type: ignore[no-any-return]


def _output_ranks(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int] | None:
    try:
        return [output.dim() for output in tensors_in(model(*args, **kwargs))]
    except Exception:  # of a model that does not take so few
        return None
