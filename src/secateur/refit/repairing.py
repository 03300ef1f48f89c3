"""`repair`: gives the weights that a cut has left the values that bring the outputs of the layers back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan, sqrt
from typing import Any

import torch
from torch import distributed, nn

from secateur.base import (
    UsageError,
    aligned,
    copy_of_model,
    count_text,
    interruptible,
    joined_lines,
    named_tensors,
    require_count,
    require_module,
    steps,
    tensors_in,
    uninterrupted,
    unwrap,
)
from secateur.capture import python_random_kept, without_random_effects
from secateur.plans import Masks, Plan
from secateur.refit.calibration_set import calibration_set, count_examples
from secateur.refit.cut_states import as_in_dense, require_cut, require_uncut, require_values
from secateur.refit.fitting import LayerRepair
from secateur.refit.fresh_passes import fresh_pass
from secateur.refit.passes import refit
from secateur.refit.processes import Processes
from secateur.surgery import apply, checked, cut, warn_about_config

EXAMPLES = 512


@dataclass(frozen=True)
class Repaired:
    """What `repair` did, layer by layer. `print(repaired)` shows it."""

    layers: tuple[LayerRepair, ...]
    before: float
    """How far the model's outputs were from the dense ones, on every fourth example: 1 is as far as their mean."""
    after: float
    """The same after the repair. These examples judged each layer, and then had their part in its last solution: of few
    examples, this says more good than others would. The errors of `layers` do not."""
    examples: int
    held_back: int
    seconds: float

    def __str__(self) -> str:
        rows = [("layer, on examples held back", "before", "after", "")]
        rows += [(layer.name, _error(layer.before), _error(layer.after), layer.kept) for layer in self.layers]
        renewed = sum(not layer.kept for layer in self.layers)
        head = [
            f"Repaired: {count_text(renewed, 'layer')} fitted on {self.examples} examples in {self.seconds:.1f} s",
            f"outputs: {self.before:.3f} → {self.after:.3f} away from the dense model's, on "
            f"{count_text(self.held_back, 'example')} of these (1 is as far as their mean)",
        ]
        return joined_lines([*head, *aligned(rows, right=(1, 2))])


def _error(error: float | None) -> str:
    return "" if error is None else f"{error:.3f}"


def repair(
    model: nn.Module,
    plan: Plan | Masks,
    batches: Any,
    *,
    dense: nn.Module | None = None,
    examples: int = EXAMPLES,
    memory_gb: float = 1.0,
    group: distributed.ProcessGroup | None = None,
    progress: bool = True,
) -> Repaired:
    """Cuts `model` and fits what is left, layer by layer, to what the dense model gave: in place, all or nothing,
    without labels and without training.

    Args:
        model: the dense model, which is cut here; or, with `dense`, one that the plan has been applied to.
        plan: of `plan_channels` or `plan_weights`.
        batches: inputs of the model, a few hundred examples of them: a loader or list of tensors, of tuples of
            arguments or of dicts of keyword arguments. Labels are of no use.
        dense: the model before the cut, where that has been made already.
        examples: how many to use; fewer where memory does not allow more.
        memory_gb: what activations may take, beyond the two models.
        group: processes that call this at the same time, such as `torch.distributed.group.WORLD`. Each gives examples
            of its own, `examples` of them in all, and all end with the same weights.
        progress: whether to show a progress bar.
    """
    started = time.monotonic()
    require_module(model)
    require_count("examples", examples, "give a whole number such as 512.")
    if not memory_gb > 0:
        raise UsageError(f"memory_gb is {memory_gb!r}; give a number above 0.")
    if group is not None and not isinstance(group, distributed.ProcessGroup):
        raise UsageError(
            f"group is a {type(group).__name__}; pass a process group such as torch.distributed.group.WORLD."
        )
    processes = Processes(group)
    if dense is not None:
        require_module(dense)
    if not isinstance(plan, Plan | Masks):
        raise UsageError(f"The plan is a {type(plan).__name__}; pass what plan_weights or plan_channels returned.")
    reference, module = unwrap(model if dense is None else dense), unwrap(model)
    work, whole, reason = processes.here(lambda: _cut_copy(module, plan, dense))
    each = -(-examples // processes.count)
    parts = processes.here(lambda: calibration_set(reference, batches, each, memory_gb * 1e9))
    with uninterrupted(patience=1), python_random_kept(), torch.no_grad():
        layers, before, after = interruptible(_refitted, reference, work, plan, parts, processes, progress)
    with uninterrupted():
        if dense is None:
            _carry_out(module, whole)
        if after < before:
            _copy_values(work, module)
    warn_about_config(reason)
    counts = processes.each(lambda: (count_examples(parts), count_examples(parts[-1:])))
    used, held_back = (sum(column) for column in zip(*counts, strict=True))
    return Repaired(layers, before, after, used, held_back, time.monotonic() - started)


def _cut_copy(
    model: nn.Module, plan: Plan | Masks, dense: nn.Module | None
) -> tuple[nn.Module, Plan | Masks, str | None]:
    """What is fitted; the plan as it has been carried out there; and why a config cannot say so, if it cannot."""
    require_values(model if dense is None else unwrap(dense))
    if dense is not None:
        require_cut(unwrap(dense), model, plan)
        return copy_of_model(model), plan, None
    require_uncut(model, plan)
    whole, reason = checked(model, plan) if isinstance(plan, Plan) else (plan, None)
    work = copy_of_model(model)
    _carry_out(work, whole)
    return work, whole, reason


def _carry_out(model: nn.Module, plan: Plan | Masks) -> None:
    if isinstance(plan, Plan):
        cut(model, plan)
    else:
        apply(model, plan)


def _refitted(
    dense: nn.Module,
    pruned: nn.Module,
    plan: Plan | Masks,
    batches: Sequence[Any],
    processes: Processes,
    progress: bool,
) -> tuple[tuple[LayerRepair, ...], float, float]:
    before = _distance(dense, pruned, batches[-1], processes)
    named = as_in_dense(plan, pruned.named_parameters())
    weights, seen = {name for name, parameter in named.items() if parameter.dim() > 1}, set[str]()
    with steps(len(weights), "repairing", progress) as begin:

        def on_layer(name: str) -> None:
            if name in weights and name not in seen:
                seen.add(name)
                begin(name)

        layers = refit(dense, pruned, plan, batches, processes, on_layer)
    processes.agree(named_tensors(pruned).values())
    return layers, before, _distance(dense, pruned, batches[-1], processes)


def _distance(dense: nn.Module, pruned: nn.Module, batch: Any, processes: Processes) -> float:
    parts = processes.each(lambda: _missed_and_spread(dense, pruned, batch))
    missed, spread = (sum(column) for column in zip(*parts, strict=True))
    return (inf if isnan(missed) else sqrt(missed / spread)) if spread else 0.0


def _missed_and_spread(dense: nn.Module, pruned: nn.Module, batch: Any) -> tuple[float, float]:
    """Sums of squares: of what the outputs miss, and of the dense ones around their mean."""
    missed = spread = 0.0
    for wanted, given in zip(*(_outputs(model, batch) for model in (dense, pruned)), strict=True):
        if wanted.is_floating_point() and wanted.shape == given.shape:
            finite = wanted.isfinite()
            if wanted.numel() and not finite.any():
                raise UsageError(
                    "The dense model gives only NaN or infinite numbers on the calibration data; repair needs a model "
                    "and data that work together."
                )
            wide = torch.where(finite, wanted.double(), 0)
            missed += float(torch.where(finite, given.double() - wide, 0).square().sum())
            spread += float((wide - wide.mean(0, keepdim=True)).square().sum())
    return missed, spread


def _outputs(model: nn.Module, batch: Any) -> list[Any]:
    _, run = fresh_pass(model, batch)
    with uninterrupted(patience=1), without_random_effects():
        return list(tensors_in(interruptible(run)))


def _copy_values(source: nn.Module, target: nn.Module) -> None:
    values = named_tensors(source)
    with torch.no_grad():
        for name, tensor in named_tensors(target).items():
            tensor.copy_(values[name])
    torch.clear_autocast_cache()
