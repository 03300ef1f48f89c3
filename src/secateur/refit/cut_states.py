"""Whether models are as `repair` needs them: with values, and before or after the cut."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from torch import nn

from secateur.base import UsageError, named_tensors
from secateur.plans import Masks, Plan
from secateur.surgery import masked_parameters

T = TypeVar("T")


def as_in_dense(plan: Plan | Masks, named: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Tensors of a cut model, by what they are called in the dense one."""
    return plan.named_as_before(dict(named)) if isinstance(plan, Plan) else dict(named)


def require_values(model: nn.Module) -> None:
    for name, tensor in named_tensors(model).items():
        if tensor.device.type == "meta":
            raise UsageError(f"{name} is on the meta device; load the model's weights first.")


def require_uncut(model: nn.Module, plan: Plan | Masks) -> None:
    """Refuses only what has been cut already; whether the plan fits is for `apply` to say."""
    if isinstance(plan, Plan):
        tensors = as_in_dense(plan, named_tensors(model).items())
        left = {name: cut for name, cut in plan.tensors.items() if not cut.is_empty}
        is_cut = bool(left) and all(
            name in tensors and tuple(tensors[name].shape) == cut.new_shape for name, cut in left.items()
        )
    else:
        is_cut = plan.zeros > 0 and _not_zero(model, plan) is None
    if is_cut:
        raise UsageError("The plan has been applied to the model already; pass the model from before as dense=….")


def require_cut(dense: nn.Module, pruned: nn.Module, plan: Plan | Masks) -> None:
    cuts = plan.tensors if isinstance(plan, Plan) else {}
    before, after = named_tensors(dense), as_in_dense(plan, named_tensors(pruned).items())
    gone = {name for name, cut in cuts.items() if cut.is_empty}
    if strangers := ({*before, *cuts} - gone) ^ {*after} or {*cuts} - {*before}:
        raise UsageError(
            f"{min(strangers)} is not in the model, in dense= and in the plan alike; pass the model from before the "
            "cut."
        )
    for name, tensor in after.items():
        cut = cuts.get(name)
        if cut is not None and tuple(tensor.shape) == cut.shape != cut.new_shape:
            raise UsageError(f"{name} has not been cut yet; leave dense= out, or apply the plan first.")
        if tuple(tensor.shape) != (before[name].shape if cut is None else cut.new_shape):
            raise UsageError(
                f"{name} has shape {tuple(tensor.shape)}, which the plan does not leave; pass the plan it was cut by."
            )
        if cut is not None and tuple(before[name].shape) != cut.shape:
            raise UsageError(
                f"dense= has {name} of shape {tuple(before[name].shape)}, but the plan cuts one of {cut.shape}; pass "
                "the model from before the cut."
            )
    if isinstance(plan, Masks) and (wrong := _not_zero(pruned, plan)) is not None:
        raise UsageError(f"{wrong} is not zero where the masks are; leave dense= out, or apply the masks first.")


def _not_zero(model: nn.Module, masks: Masks) -> str | None:
    """The first weight that has other numbers where the masks want zeros."""
    for name, (parameter, layer) in zip(masks.layers, masked_parameters(model, masks), strict=True):
        if parameter.detach()[layer.pruned().to(parameter.device)].any():
            return name
    return None
