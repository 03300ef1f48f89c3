"""`verify`: the physically cut model against the full-size reference, in float64, to rounding."""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import isnan, nan
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from secateur.base import (
    SecateurError,
    UsageError,
    as_call,
    copied,
    deep_copy,
    named_tensors,
    tensors_by_path,
    uninterrupted,
    unwrap,
)
from secateur.capture import caches_apart, plain_execution, python_random_kept
from secateur.plans import Plan
from secateur.surgery.cutting import cut, require_fit
from secateur.surgery.proof.float64 import AsWritten
from secateur.surgery.proof.reference import run_float64, run_reference

TOLERANCE = 1e-10
_MORE_THAN_ROUNDING = 1e-3
_HUGE = 1e15


@dataclass(frozen=True)
class Proof:
    """That a plan is exact for a model."""

    error: float
    """The largest difference between the cut model and the reference, relative to the largest output."""
    outputs: int
    """Output tensors that were compared: those whose shape counts."""
    moved: bool
    """Whether the cut changed the outputs at all. If not, removing anything would have passed."""

    def __str__(self) -> str:
        vacuous = "" if self.moved else "; but the removed channels had no influence on it"
        return f"exact: the outputs differ from the reference by at most {self.error:.1e} relative, in float64{vacuous}"


class ProofFailed(SecateurError):
    """The cut model does not compute what the reference computes; the plan must not be used."""


class NotProvable(UsageError):
    """The model does not allow a proof: it cannot be copied, or is random."""


def verify(model: nn.Module, plan: Plan, example_inputs: Any = None) -> Proof:
    """Proves that cutting `model` by `plan` removes exactly the planned channels and changes nothing else.

    Two float64 copies of the model run on the example inputs. One is cut physically. The other keeps its full size, the
    removed coordinates overwritten with NaN and left out of every sum and statistic; it shares no code with the
    coupling or the surgery.

    Args:
        model: in full size; stays as it is.
        plan: of `plan_channels`.
        example_inputs: to run both copies on; by default those that the plan was made with. A plan that was loaded from
            a file has none.

    Raises:
        ProofFailed: The outputs differ by more than rounding; do not use the plan.
        NotProvable: The model cannot be copied, or its outputs are random.
    """
    if not isinstance(plan, Plan):
        raise UsageError(f"The plan is a {type(plan).__name__}; pass what plan_channels returned.")
    if example_inputs is None and plan.example_inputs is None:
        raise UsageError("The plan was loaded, and example inputs are not saved with it; pass them to verify.")
    args, kwargs = as_call(plan.example_inputs if example_inputs is None else example_inputs)
    module = unwrap(model)
    require_fit(module, named_tensors(module), plan)
    if any(tensor.device.type == "meta" for tensor in named_tensors(module).values()):
        raise UsageError("The model is on the meta device and has no values to prove anything with; load its weights.")
    with uninterrupted(patience=1):
        return _proof(module, plan, args, kwargs)


def _proof(module: nn.Module, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Proof:
    free = frozenset(plan.free_outputs or ())

    def dense(seed: int = 0) -> list[Tensor]:
        return _outputs(run_float64, _full_size(module, plan).double(), args, kwargs, free, seed)

    full = _full_size(module, plan)
    with python_random_kept():
        glimpse = _glimpse(full, args, kwargs, free)
        pruned = _copy(full.double())
        cut(pruned, plan)
        _mark_removed(full, plan)
        expected, got = _both_outputs(full, pruned, args, kwargs, free, _dtype_of(module))
        difference = _largest_difference(expected, got)
        if not difference <= TOLERANCE:
            if _largest_difference(dense(), dense(seed=1)) > TOLERANCE:
                # Random numbers drawn in another shape are other numbers.
                raise NotProvable(
                    "The model draws random numbers even in evaluation mode, so that nothing can be compared."
                )
            amount = f"the outputs differ by {difference:.1e}"
            what = "a removed channel reaches an output" if isnan(difference) else amount
            raise ProofFailed(f"The cut model is not what the plan says: {what}, relative, in float64.")
        moved = glimpse is not None and _largest_difference(glimpse, got) > _MORE_THAN_ROUNDING
        moved = moved or _largest_difference(dense(), got) > TOLERANCE
    if plan.same_outputs:
        _require_same_outputs(module, plan, args, kwargs, free)
    return Proof(difference, len(got), moved)


def _dtype_of(module: nn.Module) -> torch.dtype:
    floating = (parameter.dtype for parameter in module.parameters() if parameter.is_floating_point())
    return next(floating, torch.float32)


def _both_outputs(
    full: nn.Module, pruned: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], free: Set[str], own: torch.dtype
) -> tuple[list[Tensor], list[Tensor]]:
    try:
        expected = _outputs(run_reference, full, args, kwargs, free)
    except Exception as error:
        raise NotProvable(
            f"The reference does not run ({type(error).__name__}: {error}); nothing is proven."
        ) from error
    try:
        return expected, _outputs(partial(run_float64, own=own), pruned, args, kwargs, free)
    except Exception as error:
        raise ProofFailed(
            f"The cut model does not run ({type(error).__name__}: {error}); leave the layer out with keep=[…], and "
            "tell us about the model."
        ) from error


def _require_same_outputs(
    module: nn.Module, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], free: Set[str]
) -> None:
    """Of the model as it is and the cut one: the plan removes dead channels only."""
    whole = _copy(module).eval().double()
    pruned = _copy(whole)
    cut(pruned, plan)
    with python_random_kept():
        before, after = (_outputs(run_float64, each, args, kwargs, free) for each in (whole, pruned))
    difference = _largest_difference(before, after)
    if not difference <= TOLERANCE:
        raise ProofFailed(
            f"The channels that the plan removes are not dead in this model: the outputs would change by "
            f"{difference:.1e}, relative, in float64; plan it again for the weights as they are."
        )


def _full_size(module: nn.Module, plan: Plan) -> nn.Module:
    full = _copy(module).eval()
    _vary_constants(full, plan)
    return full


def _glimpse(full: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], free: Set[str]) -> list[Tensor] | None:
    """The outputs before the cut in single precision, which is several times faster than float64, and enough to see
    that a cut changes them. None where that shows nothing: the model is random, or has a lower precision."""

    def run(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int) -> Any:
        return model(*args, **kwargs)

    if any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in full.parameters()):
        return None
    with suppress(Exception), plain_execution(), caches_apart(full), AsWritten() as mode:
        outputs = _outputs(run, full, args, kwargs, free)
        return None if mode.random.drawn else outputs
    return None


def _copy(module: nn.Module) -> nn.Module:
    try:
        return deep_copy(module)
    except Exception as error:
        raise NotProvable(
            f"The model cannot be copied ({error}); let it hold no graph tensors, locks or files for a proof."
        ) from error


def _outputs(
    run: Any, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], free: Set[str], seed: int = 0
) -> list[Tensor]:
    """Those whose shape counts."""
    outputs = [tensor for path, tensor in tensors_by_path(run(model, *copied(args, kwargs), seed)) if path not in free]
    real = [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in outputs]
    if not real:
        raise NotProvable("The model returns no tensor that could be compared; nothing is proven.")
    return [tensor.detach().double() for tensor in real]


def _vary_constants(module: nn.Module, plan: Plan) -> None:
    """Scales of 1 and biases of 0 look the same in any order and would hide a mix-up: they get values of their own."""
    generator = torch.Generator().manual_seed(0)
    tensors = named_tensors(module)
    for name in plan.tensors:
        tensor = tensors[name]
        if tensor.is_floating_point() and tensor.numel() > 1 and _is_constant(tensor.flatten()):
            noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
            tensor.data = tensor.data + 0.1 + 0.4 * noise


def _is_constant(numbers: Tensor) -> bool:
    return bool(numbers[0] == numbers[-1]) and bool((numbers == numbers[0]).all())


def _mark_removed(module: nn.Module, plan: Plan) -> None:
    """What the removed coordinates leave behind is added; they themselves become NaN."""
    tensors = named_tensors(module)
    with torch.no_grad():
        for name, numbers in (plan.folded or {}).items():
            tensors[name].data += torch.tensor(numbers, dtype=torch.float64, device=tensors[name].device)
        for name, tensor_cut in plan.tensors.items():
            for axis, kept in tensor_cut.kept.items():
                gone = np.delete(np.arange(tensor_cut.shape[axis]), kept)
                tensors[name].data.index_fill_(axis, torch.from_numpy(gone).to(tensors[name].device), nan)


def _largest_difference(expected: list[Tensor], got: list[Tensor]) -> float:
    """Relative to the largest value; NaN where a removed coordinate came through, infinite where shapes differ."""
    if [tensor.shape for tensor in expected] != [tensor.shape for tensor in got]:
        return float("inf")
    worst = 0.0
    for reference, tensor in zip(expected, got, strict=True):
        if not reference.numel():
            continue
        same = reference == tensor  # infinities included
        # Masks leave values such as -3e38 behind, beside which any difference would look small.
        ordinary = reference[reference.abs() < _HUGE].abs()
        scale = ordinary.max().item() if ordinary.numel() else 1.0
        difference = torch.where(same, 0.0, (reference - tensor).abs()).max().item() / (scale or 1.0)
        worst = max(worst, difference) if not isnan(difference) else nan
        if isnan(worst):
            return nan
    return worst
