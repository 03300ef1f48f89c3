"""A dry run: the cut model runs once on stand-ins for its weights, before anything is cut."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map_only

from secateur.base import (
    SecateurError,
    UsageError,
    as_call,
    batch_of,
    copied,
    evaluating,
    in_brief,
    tensors_by_path,
    uninterrupted,
    unwrap,
)
from secateur.capture import (
    NumberRecorder,
    numbers_noted,
    plain_execution,
    python_random_kept,
    unchanged,
    write_attributes,
)
from secateur.plans import Plan, inputs_of_form
from secateur.surgery.cutting import named_tensors, require_fit
from secateur.surgery.proof.verifying import ProofFailed

_CHEAP_PARAMETERS = 5_000_000
_CHEAP_MACS = 100_000_000
_CHEAP_OPERATORS = 500


def is_cheap_to_prove(model: nn.Module, plan: Plan) -> bool:
    """Whether a proof takes less than about a second, about as long as the plan took, and a few times 5 million numbers
    of memory. It is counted, not timed: the same model gets the same check on every machine."""
    on_meta = any(parameter.device.type == "meta" for parameter in model.parameters())
    numbers = sum(parameter.numel() for parameter in model.parameters())  # what a plan says of them may be forged
    macs = plan.macs[0] * max(1, batch_of(plan.example_inputs))
    few = numbers <= _CHEAP_PARAMETERS and macs <= _CHEAP_MACS and (plan.operators or 0) <= _CHEAP_OPERATORS
    return few and not on_meta


def with_stand_ins(model: nn.Module, plan: Plan) -> Plan:
    """A plan of a file with inputs of the form that it holds, on which the model runs as it is.

    Where the whole model would not run, nothing could be said of the cut one: that is refused, as is a file without a
    form, so that a forger cannot leave the check out.
    """
    module = unwrap(model)
    tensors = named_tensors(module)
    require_fit(module, tensors, plan)
    if plan.example_form is None:
        raise UsageError(
            "The plan's file does not say what the model is called with, so the cut cannot be tried out first; "
            "pass example_inputs=…, or verify=False to cut without a check."
        )
    try:
        made = replace(plan, example_inputs=inputs_of_form(plan.example_form, _device(tensors)))
        _, recorder = _tried(module, tensors, replace(made, tensors={}, attributes={}))
    except Exception as error:
        raise UsageError(
            f"The model does not run on inputs of the form that the plan was made with ({in_brief(error)}); "
            "pass example_inputs=… that it takes, or verify=False to cut without a check."
        ) from error
    return replace(made, operators=recorder.operators)


def dry_run_if_possible(model: nn.Module, plan: Plan) -> None:
    """For the plan of a checkpoint: what fails is refused only where its file holds a form on which the whole model
    runs, because the weights of a checkpoint are of no use without the cut."""
    if plan.example_form is None:
        return
    device = _device(named_tensors(unwrap(model)))
    try:
        dry_run(model, replace(plan, example_inputs=inputs_of_form(plan.example_form, device)))
    except ProofFailed as error:
        with suppress(UsageError):
            with_stand_ins(model, plan)
            reason = in_brief(error.__cause__ or error)
            raise SecateurError(f"The stored plan makes no model that runs ({reason}); save it again.") from error


def dry_run(model: nn.Module, plan: Plan) -> None:
    """Refuses a plan with which the code would not run, or would give outputs that count another shape.

    The cut weights are played by numbers that all share one place in memory: that takes no more of it than the largest
    of them, and the time of one pass of the cut model. A plan that was just made is not tried out on the meta device,
    where code that looks at data cannot run, nor where the data decides what is computed; one of a file has to run all
    the same.
    """
    module = unwrap(model)
    tensors = named_tensors(module)
    require_fit(module, tensors, plan)
    if plan.constants is not None and (not plan.output_shapes or _device(tensors).type == "meta"):
        return
    try:
        out, recorder = _tried(module, tensors, plan)
    except Exception as error:
        raise ProofFailed(
            f"The cut model would not run ({type(error).__name__}: {error}); nothing was cut. "
            "Leave the layer out with keep=[…], and tell us about the model."
        ) from error
    _require_same_shapes(plan, out)
    _require_no_new_numbers(plan, recorder.numbers)


def _require_same_shapes(plan: Plan, out: Any) -> None:
    """Of the outputs that count, where they are known."""
    found = [(path, tuple(tensor.shape)) for path, tensor in tensors_by_path(out)]
    free = plan.free_outputs or ()
    same = [path in free or shape == dense for (path, shape), dense in zip(found, plan.output_shapes, strict=False)]
    if plan.output_shapes and not (all(same) and len(found) == len(plan.output_shapes)):
        shapes = tuple(shape for _, shape in found)
        raise ProofFailed(
            f"The cut model would give outputs of shapes {shapes} instead of {plan.output_shapes}; nothing was cut."
        )


def _device(tensors: dict[str, Tensor]) -> torch.device:
    """Meta if any tensor is there."""
    devices = [tensor.device for tensor in tensors.values()] or [torch.device("cpu")]
    return next((device for device in devices if device.type == "meta"), devices[0])


def computes_alike(module: nn.Module, plan: Plan, other: Plan) -> bool:
    """Whether two plans that cut the same tensors leave code that does the same, as far as a dry run shows."""
    tensors = named_tensors(module)
    try:
        (out, recorder), (other_out, other_recorder) = (_tried(module, tensors, each) for each in (plan, other))
    except Exception:  # whatever the code meets
        return False
    shapes, other_shapes = ([(at, tensor.shape) for at, tensor in tensors_by_path(each)] for each in (out, other_out))
    return shapes == other_shapes and recorder.numbers == other_recorder.numbers


def _require_no_new_numbers(plan: Plan, numbers: set[str]) -> None:
    """A scale that is computed from a size in a way that cannot be followed shows here. A file does not hold them."""
    if plan.constants is None:
        return
    if new := sorted(numbers - plan.constants):
        raise ProofFailed(
            f"The cut model would compute with another number, {new[0]}: the code makes it of a size that is cut; "
            "nothing was cut. Leave the layer out with keep=[…]."
        )


def _tried(module: nn.Module, tensors: dict[str, Tensor], plan: Plan) -> tuple[Any, NumberRecorder]:
    """The outputs of the cut model on stand-ins, and what was noted of its arithmetic."""
    by_identity = _stand_ins(tensors, plan)
    every_name = {name: by_identity[id(tensor)] for name, tensor in tensors.items() if id(tensor) in by_identity}
    args, kwargs = copied(*as_call(plan.example_inputs))
    if _device(tensors).type == "meta":
        args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
    recorder = NumberRecorder()
    with uninterrupted(patience=1), evaluating(module), unchanged(module), python_random_kept(), plain_execution():
        write_attributes(module, {key: new for key, (_, new) in plan.attributes.items()}, [])
        with numbers_noted(recorder):
            out = functional_call(module, every_name, args, kwargs, tie_weights=False)
    return out, recorder


def _stand_ins(tensors: dict[str, Tensor], plan: Plan) -> dict[int, Tensor]:
    """Of the new shapes, by the identity of what they stand for; each lies in memory as kernels are fast with."""
    longest: dict[tuple[torch.dtype, torch.device], int] = {}
    for name, cut in plan.tensors.items():
        kind = tensors[name].dtype, tensors[name].device
        longest[kind] = max(longest.get(kind, 0), prod(cut.new_shape))
    shared = {kind: torch.full((n,), 0.01, dtype=kind[0], device=kind[1]) for kind, n in longest.items()}
    return {
        id(tensors[name]): shared[tensors[name].dtype, tensors[name].device][: prod(cut.new_shape)].view(cut.new_shape)
        for name, cut in plan.tensors.items()
    }
