"""Questions to values that concern nobody but the module that asks, such as an observer's whether it has seen data.

However they are answered, the module returns and keeps things of the same form, and the code around it goes on as it
did. So each call of such a module takes all of its ways at once, and the model need not be run for every combination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from secateur.capture.attributes import unchanged
from secateur.capture.expressions import expression_of
from secateur.capture.other_ways import Way, take_ways
from secateur.capture.recorder import CallRecorder

_PLAIN = (bool, int, float, str, type(None))


@contextmanager
def questions_settled(model: nn.Module, recorder: CallRecorder) -> Iterator[bool]:
    """The innermost modules among those that asked take their ways by themselves; yields whether there are any."""
    asking = [path for path in recorder.asking if path]
    inner = [path for path in asking if not any(other.startswith(f"{path}.") for other in asking)]
    modules = [model.get_submodule(path) for path in inner]
    before = [dict(vars(module)) for module in modules]
    try:
        for module in modules:
            vars(module)["forward"] = _on_all_ways(module, module.forward, recorder)
        yield bool(modules)
    finally:
        for module, own in zip(modules, before, strict=True):
            del vars(module)["forward"]
            vars(module).update({"forward": own["forward"]} if "forward" in own else {})


def _on_all_ways(module: nn.Module, forward: Callable[..., Any], recorder: CallRecorder) -> Callable[..., Any]:
    """The module's `forward`, whose questions are not heard outside unless their answers make a difference there."""

    def settled(*args: Any, **kwargs: Any) -> Any:
        def run(way: Way) -> list[Any]:
            with unchanged(module):
                return _left_behind(forward(*args, **kwargs), module)

        if not all(map(_is_plain, (*args, *kwargs.values()))):
            return forward(*args, **kwargs)
        outside = recorder.answers, recorder.answered
        found = take_ways(run, [Way(module.training, args, kwargs, [])], recorder)
        if found and all(_alike(found[0], other) for other in found[1:]):
            recorder.answers, recorder.answered = [], []
            out = forward(*args, **kwargs)
            for other in found:
                _tie(_left_behind(out, module), other)
            recorder.answers, recorder.answered = outside
            return out
        recorder.answers, recorder.answered = outside
        return forward(*args, **kwargs)

    return settled


def _is_plain(argument: Any) -> bool:
    """Whether a call cannot leave anything in it but values of tensors."""
    if isinstance(argument, tuple):
        return all(map(_is_plain, argument))
    return isinstance(argument, (Tensor, *_PLAIN))


def _left_behind(returned: Any, module: nn.Module) -> list[Any]:
    """What the code around a module can see of a call: what was returned, and all that its modules hold."""
    return list(_parts([returned, *(vars(each) for each in module.modules())], set()))


def _parts(tree: Any, seen: set[int]) -> Iterator[Any]:
    """The tensors in nested containers and objects, and between them all else that is there, to be compared."""
    inner: list[Any] | None = None
    if isinstance(tree, Mapping):
        inner = [part for item in tree.items() for part in item]
    elif isinstance(tree, list | tuple | set):
        inner = list(tree)
    elif hasattr(tree, "__dict__") and not callable(tree) and not isinstance(tree, int | Tensor):
        inner = [part for item in vars(tree).items() for part in item]
    if inner is None or id(tree) in seen:
        yield expression_of(tree) if isinstance(tree, int) else tree
        return
    seen.add(id(tree))
    yield type(tree), len(inner)
    for part in inner:
        yield from _parts(part, seen)


def _alike(left: list[Any], right: list[Any]) -> bool:
    with torch._C.DisableTorchFunction():  # here our own reading of shapes would be recorded
        return len(left) == len(right) and all(map(_same_form, left, right))


def _same_form(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
    return a is b or (type(a) is type(b) and isinstance(a, float | str | tuple) and a == b)


def _tie(left: list[Any], right: list[Any]) -> None:
    """Writes down that each tensor is the one or the other, so that both are cut alike."""
    for a, b in zip(left, right, strict=True):
        if isinstance(a, Tensor) and a is not b:
            torch.where(torch.ones((), dtype=torch.bool, device=a.device), a, b)
