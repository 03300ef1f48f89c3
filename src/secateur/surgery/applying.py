"""`apply`: carries out a plan or masks on a model, all or nothing."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, TypeVar

from torch import nn
from torch.optim import Optimizer

from secateur.base import SecateurWarning, UsageError, unwrap
from secateur.plans import Masks, Plan
from secateur.surgery.config_search import with_configs
from secateur.surgery.cutting import cut
from secateur.surgery.proof.dry_run import Passes, dry_run, is_cheap_to_prove, with_inputs
from secateur.surgery.proof.verifying import NotProvable
from secateur.surgery.proof.verifying import verify as prove
from secateur.surgery.zeroing import zero_pruned

Model = TypeVar("Model", bound=nn.Module)


def apply(
    model: Model,
    plan: Masks | Plan,
    *,
    optimizer: Optimizer | None = None,
    verify: bool | None = None,
    example_inputs: Any = None,
) -> Model:
    """Carries out a plan on `model`, in place and all or nothing, and returns the model.

    Args:
        model: with `Masks`, its pruned weights become zero. The zeros are plain values that an optimizer would bring
            back, so train with `secateur.hold` in force. With a `Plan`, its layers shrink; parameters stay the same
            objects. The config of a transformers model gets the new widths, for `save_pretrained`; where it cannot say
            them, a warning names the layers.
        plan: of `plan_weights` or `plan_channels`. One that does not fit the model changes nothing.
        optimizer: for a `Plan`, an optimizer of the model; its momenta are cut along with the parameters.
        verify: for a `Plan`, whether to prove it first, as `secateur.verify` does. By default it is proven where that
            takes about as long as the plan did, and less than a second, and otherwise tried out once on weights without
            values. What fails is refused; False leaves the check out.
        example_inputs: for a `Plan`, what to check it with; by default what it was made with. For a plan that was
            loaded, these are inputs of the same shapes, dtypes and ranges. Where its file does not hold them, because
            an earlier version wrote it or they are more than tensors, numbers and text, pass them.
    """
    if isinstance(plan, Plan):
        if example_inputs is not None:
            given = replace(plan, example_inputs=example_inputs)
            plan = with_inputs(model, plan, example_inputs) if verify is None else given
        whole, reason = checked(model, plan, verify)
        cut(model, whole, optimizer)
        warn_about_config(reason)
        return model
    if not isinstance(plan, Masks):
        raise UsageError(f"The plan is a {type(plan).__name__}; pass what plan_weights or plan_channels returned.")
    if optimizer is not None or verify is not None or example_inputs is not None:
        raise UsageError(
            "optimizer, verify and example_inputs belong to plans of plan_channels; apply masks without them."
        )
    zero_pruned(model, plan)
    return model


def checked(model: nn.Module, plan: Plan, verify: bool | None = None) -> tuple[Plan, str | None]:
    """The plan as it is carried out, with the new numbers of a config, and why a config cannot say them, if it cannot.
    What cannot be carried out is refused."""
    passes = Passes(unwrap(model))
    whole, reason = with_configs(model, plan, passes)
    if verify:
        prove(model, whole)
    elif verify is None:
        _rehearse(model, whole if whole.example_inputs is not None else with_inputs(model, whole), passes)
    return whole, reason


def warn_about_config(reason: str | None) -> None:
    """Tells the user who called what calls this."""
    if reason is not None:
        warnings.warn(
            f"from_pretrained will not load what save_pretrained writes of this model: {reason}. secateur.save and "
            "secateur.load keep it as it is.",
            SecateurWarning,
            stacklevel=3,
        )


def _rehearse(model: nn.Module, plan: Plan, passes: Passes) -> None:
    if not (is_cheap_to_prove(model, plan) and _is_proven(model, plan)):
        dry_run(model, plan, passes)


def _is_proven(model: nn.Module, plan: Plan) -> bool:
    """False where nothing was at stake, or where the model allows no proof: not asked for, so a dry run has to do."""
    try:
        return prove(model, plan).moved
    except NotProvable:
        return False
