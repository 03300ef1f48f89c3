"""`rule`: what an operator that is not torch's own computes, in operators that the engine knows.

A definition takes the operator's place wherever secateur looks at a model run. So the rules for torch's operators
couple its channels, and the proof knows what becomes of a removed one. The operator itself runs beside its definition,
on the whole model and on the cut one, and both have to agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import is_fake
from torch.utils._pytree import tree_leaves, tree_map_only

from secateur.base import UsageError

Definition = TypeVar("Definition", bound=Callable[..., Any])
Operator: TypeAlias = "str | type[torch.autograd.Function]"

_DEFINITIONS: dict[Operator, Callable[..., Any]] = {}
# Relative to the largest number: a kernel may add in another order, and round on the way.
_ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-3}
_ROUNDING_BELOW = 3e-2


def rule(operator: Operator) -> Callable[[Definition], Definition]:
    """Teaches secateur an operator that is not torch's own. Decorates a function that computes the same with torch:

        @secateur.rule("mylib::scaled")
        def scaled(x, scale):
            return x * scale

    Channels are then followed through the operator and removed, and `verify` proves the cut, as if the model were
    written so; the model itself goes on calling the operator. Without a rule, all that the operator touches stays.

    Args:
        operator: the name under which `torch.library` or C++ registered it, or a class of `torch.autograd.Function`.
            The function takes the same arguments; those of an autograd function's `apply`. Its code is free to read
            sizes. It must not write to its arguments.

    Raises:
        UsageError: The name has no namespace, or is of one of torch's own operators. When the model runs: the function
            computes something else than the operator does.
    """
    named = isinstance(operator, str) and "::" in operator and not operator.startswith("aten::")
    if not named and not (isinstance(operator, type) and issubclass(operator, torch.autograd.Function)):
        raise UsageError(
            f"{operator!r} is no operator of your own; pass its name, such as 'mylib::scaled', or a class of "
            "torch.autograd.Function."
        )

    def register(definition: Definition) -> Definition:
        _DEFINITIONS[operator] = definition
        return definition

    return register


def definition_of(function: Any) -> Callable[..., Any] | None:
    """The definition of what a function mode is handed, or of an autograd function; None for all that has none."""
    if isinstance(function, OpOverloadPacket):
        function = getattr(function, function.overloads()[0])
    if not isinstance(function, OpOverload):
        return _DEFINITIONS.get(function) if isinstance(function, type) else None
    definition = _DEFINITIONS.get(function._schema.name)
    if definition is not None and function._schema.is_mutable:
        raise UsageError(
            f"{function} writes to its arguments, which a rule cannot say; let it return what it computes."
        )
    return definition


def agreed(operator: Any, got: Any, defined: Any) -> Any:
    """What the definition gave, if the operator itself gave the same, to rounding."""
    name = operator.__name__ if isinstance(operator, type) else str(operator)
    ours, theirs = ([leaf for leaf in tree_leaves(each) if isinstance(leaf, Tensor)] for each in (defined, got))
    if [leaf.shape for leaf in ours] != [leaf.shape for leaf in theirs]:
        shapes = " instead of ".join(str([tuple(leaf.shape) for leaf in each]) for each in (ours, theirs))
        raise UsageError(f"The rule for {name} gives outputs of shapes {shapes}; mend the rule.")
    if not all(map(_equal_to_rounding, ours, theirs)):
        raise UsageError(f"The rule for {name} computes something else than {name} does; mend the rule.")
    return defined


def _equal_to_rounding(own: Tensor, other: Tensor) -> bool:
    if other.device.type == "meta" or is_fake(other) or not other.numel():
        return True
    if not other.is_floating_point():
        return torch.equal(own, other)
    scale = other.abs().nan_to_num(0, 0).max().item()
    rounding = _ROUNDING.get(other.dtype, _ROUNDING_BELOW) * scale
    return torch.allclose(own.to(other.dtype), other, rtol=0, atol=rounding, equal_nan=True)


def lowered(values: Any, dtype: torch.dtype) -> Any:
    """Float64 numbers in the precision that an operator is called with."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(dtype) if tensor.dtype == torch.float64 else tensor, values)
