"""`apply`: carries out a plan or masks on a model, all or nothing."""

from __future__ import annotations

from typing import TypeVar

from torch import nn
from torch.optim import Optimizer

from secateur.base import UsageError
from secateur.plans import Masks, Plan
from secateur.surgery.cutting import cut
from secateur.surgery.proof.dry_run import dry_run, is_cheap_to_prove
from secateur.surgery.proof.verifying import NotProvable
from secateur.surgery.proof.verifying import verify as prove
from secateur.surgery.zeroing import zero_pruned

__all__ = ["apply"]

Model = TypeVar("Model", bound=nn.Module)


def apply(model: Model, plan: Masks | Plan, *, optimizer: Optimizer | None = None, verify: bool | None = None) -> Model:
    """Carries out a plan on `model`, in place and all or nothing, and returns the model.

    Args:
        model: with `Masks`, its pruned weights become zero. The zeros are plain values that an optimizer would bring
            back, so train with `secateur.hold` in force. With a `Plan`, its layers shrink; parameters stay the same
            objects.
        plan: of `plan_weights` or `plan_channels`. One that does not fit the model changes nothing.
        optimizer: for a `Plan`, an optimizer of the model; its momenta are cut along with the parameters.
        verify: for a `Plan`, whether to prove it first, as `secateur.verify` does. By default a plan that was made in
            this process is proven where that takes less than about a second, and otherwise tried out once on weights
            without values. What fails is refused.
    """
    if isinstance(plan, Plan):
        _check(model, plan, verify)
        cut(model, plan, optimizer)
        return model
    if not isinstance(plan, Masks):
        raise UsageError(f"The plan is a {type(plan).__name__}; pass what plan_weights or plan_channels returned.")
    if optimizer is not None or verify is not None:
        raise UsageError("optimizer and verify belong to plans of plan_channels; apply masks without them.")
    zero_pruned(model, plan)
    return model


def _check(model: nn.Module, plan: Plan, verify: bool | None) -> None:
    if verify is False or (verify is None and plan.example_inputs is None):
        return
    if verify:
        prove(model, plan)
    elif not (is_cheap_to_prove(model, plan) and _is_proven(model, plan)):
        dry_run(model, plan)


def _is_proven(model: nn.Module, plan: Plan) -> bool:
    """False where nothing was at stake, or where the model allows no proof: not asked for, so a dry run has to do."""
    try:
        return prove(model, plan).moved
    except NotProvable:
        return False
