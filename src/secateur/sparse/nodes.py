"""What a node of a captured graph says: its arguments by name, constants, and who reads or overwrites what."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from torch import Tensor, fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.experimental.symbolic_shapes import statically_known_true


def arguments(node: fx.Node) -> dict[str, Any]:
    """All arguments of an ATen call, those left out as well."""
    assert isinstance(node.target, OpOverload)
    declared = node.target._schema.arguments
    defaults = {each.name: each.default_value for each in declared if each.has_default_value()}
    given = dict(zip((each.name for each in declared), node.args, strict=False))
    return {**defaults, **given, **node.kwargs}


def constant(graph: fx.GraphModule, argument: Any) -> Tensor | None:
    """The parameter or buffer that the argument is; None if it is computed, or written to by the model."""
    if not isinstance(argument, fx.Node) or argument.op != "get_attr" or any(map(writes, argument.users)):
        return None
    found = attrgetter(str(argument.target))(graph)
    return found.detach() if isinstance(found, Tensor) else None


def writes(node: fx.Node) -> bool:
    """Whether the call may overwrite a tensor; of control flow nobody knows."""
    if isinstance(node.target, OpOverload):
        return bool(node.target._schema.is_mutable)
    return isinstance(node.target, HigherOrderOperator)


def anything_written(after: fx.Node, before: fx.Node) -> bool:
    """Whether a call between the two may overwrite a tensor."""
    node = after.next
    while node is not before:
        if writes(node):
            return True
        node = node.next
    return False


def sole_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def value_of(node: Any) -> Tensor | None:
    """The tensor that stands for the result, without its numbers; its sizes may be symbols."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def same_shape(a: Tensor, b: Tensor) -> bool:
    """Whether the shapes are equal whatever the free sizes are."""
    return a.ndim == b.ndim and all(statically_known_true(m == n) for m, n in zip(a.shape, b.shape, strict=True))
