"""What was applied to a model, as one plan and one set of masks, and the check that the model shows it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from secateur.base import UsageError, named_tensors
from secateur.capture import read_attribute
from secateur.plans import Masks, Plan


def as_one(applied: Plan | Masks | Sequence[Plan | Masks]) -> tuple[Plan | None, Masks | None]:
    steps = [applied] if isinstance(applied, Plan | Masks) else applied
    if not isinstance(steps, Sequence) or not all(isinstance(step, Plan | Masks) for step in steps):
        raise UsageError("What was applied is neither a Plan nor Masks; give what plan_channels or plan_weights made.")
    masks = steps[-1] if steps and isinstance(steps[-1], Masks) else None
    plan: Plan | None = None
    for step in steps[:-1] if masks else steps:
        if not isinstance(step, Plan):
            raise UsageError(
                "Masks come last, and once: give the plans in the order they were applied, then the masks in force."
            )
        plan = step if plan is None else _composed(plan, step)
    return plan, masks


def _composed(first: Plan, later: Plan) -> Plan:
    for path, list_cut in (later.lists or {}).items():
        if first.lists and path in first.lists and len(first.lists[path].kept) != list_cut.length:
            raise UsageError(
                f"A plan shortens {path} of another length; give the plans in the order they were applied."
            )
    for name, cut in first.named_as_before(later.tensors).items():
        if name in first.tensors and first.tensors[name].new_shape != cut.shape:
            raise UsageError(
                f"A plan cuts {name} of shape {cut.shape}, but the one before leaves {first.tensors[name].new_shape}; "
                "give the plans in the order they were applied."
            )
    return first.then(later)


def require_cut(module: nn.Module, plan: Plan) -> None:
    """Refuses a model that the plan was not applied to, or that another was applied to as well."""
    tensors = plan.named_as_before(named_tensors(module))
    held = dict(module.named_modules())
    for path, list_cut in (plan.lists or {}).items():
        found = held.get(path)
        if not isinstance(found, nn.ModuleList) or len(found) != len(list_cut.kept):
            raise UsageError(
                f"The plan leaves {len(list_cut.kept)} modules in {path}, but the model does not have them; "
                "apply the plan first."
            )
    for name, cut in plan.tensors.items():
        if cut.is_empty:
            continue
        if name not in tensors:
            raise UsageError(f"The plan cuts {name}, which the model does not have; give the plan that was applied.")
        shape = tuple(tensors[name].shape)
        if shape != cut.new_shape:
            advice = "apply the plan first" if shape == cut.shape else "give every plan that was applied, in order"
            raise UsageError(f"The plan leaves {name} with shape {cut.new_shape}, but the model has {shape}; {advice}.")
    for (before, way), (_, new) in plan.attributes.items():
        after = plan.name_after(before)
        found = new if after is None else read_attribute(module, (after, way))
        if found != new:
            where = ".".join(str(step) for step in (after, *way) if step != "")
            raise UsageError(
                f"The plan leaves {where} as {new}, but the model has {found}; give every plan that was applied."
            )
