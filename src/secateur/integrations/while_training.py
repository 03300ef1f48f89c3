"""`prune_while_training`: prunes a model on schedule while any loop trains it.

All it needs of the loop is the optimizer: its step hook counts the steps, holds the zeros, and plans and cuts where the
schedule says so. Momenta and the learning-rate schedule go on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from secateur.base import Amount, UsageError, require_count, require_module
from secateur.integrations.pruning_state import PruningState
from secateur.integrations.training_pruner import OnCut, TrainingPruner, cut_as_before, left_by, processes
from secateur.loop import DEFAULT_CUTS, RAMP_SHARE, Pruner, cut_steps, require_cuts
from secateur.plans import Masks, Plan, Request, Schedule, Zeros, as_request


class When(TypedDict, total=False):
    """The options of `TrainingCut`, as keywords of a function."""

    schedule: Schedule
    cuts: int
    start: float
    end: float | None
    example_inputs: Any


@dataclass(eq=False)
class TrainingCut:
    """What to cut, and when in the course of a training."""

    cut: Amount | Request
    """`Zeros(0.8)`, `Channels(0.5)` or a `Target`; an amount alone is one of `Zeros`."""
    schedule: Schedule = "one-shot"
    """ "one-shot" cuts once, at `start`; "iterative" in several cuts; "gradual", for `Zeros`, raises the amount along a
    cubic ramp."""
    cuts: int = DEFAULT_CUTS
    """How many, with "iterative"."""
    start: float = 0.0
    """The share of the training's steps before the first cut; 0 cuts before the first step."""
    end: float | None = None
    """The share of the steps before the last cut of several; by default 0.75, so that a quarter is left to recover."""
    example_inputs: Any = None
    """For channels and targets: what to run the model on."""

    def __post_init__(self) -> None:
        self.cut = as_request(Zeros, self.cut, {})
        require_cuts(self.schedule, self.cuts)
        if self.schedule == "one-shot" and self.end is not None:
            raise UsageError('The schedule "one-shot" cuts once, at start; leave out end.')
        end = self._end
        if not (isinstance(self.start, int | float) and isinstance(end, int | float) and 0 <= self.start <= end <= 1):
            raise UsageError(
                f"Cuts run from {self.start!r} to {end!r} of the training; give shares of its steps, such as "
                "start=0.1 and end=0.75: the last cut comes after the first, and before the training ends."
            )
        Pruner(self.cut, self.schedule, self.example_inputs, trains_first=True)  # refuses what can never go together

    @property
    def _end(self) -> float:
        return max(RAMP_SHARE, self.start) if self.end is None else self.end

    @property
    def cuts_before_training(self) -> bool:
        """Whether all is cut before the first step, so that every checkpoint has it."""
        return self.schedule == "one-shot" and self.start == 0

    def attach(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        steps: int,
        on_cut: OnCut,
        state: PruningState | None,
    ) -> TrainingPruner:
        """Puts it in force on a model and its optimizer, and goes on from a state where one is given."""
        assert isinstance(self.cut, Request)
        require_module(model)
        require_count("steps", steps, "give the number of steps that the optimizer will take.")
        if not isinstance(self.cut, Zeros) and self.example_inputs is None:
            raise UsageError("Channels are found by running the model; give example_inputs.")
        _require_in_reach(model, self.cut)
        agenda = cut_steps(self.schedule, self.cuts, steps, self.start, self._end)
        if state is not None:
            _require_same_kind(state, self.cut)
            cut_as_before(model, state.plan, optimizer)
        pruner = Pruner(self.cut, self.schedule, self.example_inputs, trains_first=min(agenda) > 0)
        return TrainingPruner(model, optimizer, pruner, agenda, on_cut, state)


def prune_while_training(
    model: nn.Module,
    optimizer: Optimizer,
    cut: Amount | Request,
    *,
    steps: int,
    log: Callable[[dict[str, float], int], object] | None = None,
    resume: str | Path | None = None,
    **when: Unpack[When],
) -> TrainingPruner:
    """Prunes `model` on schedule while your own loop steps `optimizer`: zeros are held, and momenta are cut along.

    A call that cannot work is refused before the first step.

    Args:
        model: is cut in place. Zeros work under DDP and FSDP 2; channels cannot be cut while several processes train.
        optimizer: that trains the model; any of `torch.optim`, or accelerate's wrapper around one.
        cut: `Zeros(0.8)`, `Channels(0.5)` or a `Target`; an amount alone is one of `Zeros`. The score "taylor" takes
            the gradients of the step before the cut.
        steps: that the optimizer will take in all.
        log: called at each cut with what is left, as a dict of numbers, and the number of steps, like
            `accelerator.log`.
        resume: the folder that `save` wrote to, to go on from there. Give it before you load the weights and the
            optimizer's state: a model that is not cut yet is cut as it was.
        **when: `schedule` ("one-shot", "iterative" or "gradual"), `cuts` of the iterative one, `start` and `end` as
            shares of the steps (by default 0 and 0.75), and for channels `example_inputs`.

    Returns:
        What is in force until its `release` is called; in a `with` statement, until the block ends. The zeros stay.
    """
    training_cut = TrainingCut(cut, **when)
    state = None if resume is None else PruningState.load(resume)

    def tell(planned: Masks | Plan, step: int) -> None:
        if log is not None:
            log(left_by(planned), step)

    return training_cut.attach(model, optimizer, steps, tell, state)


def _require_same_kind(state: PruningState, request: Request) -> None:
    if (state.plan if isinstance(request, Zeros) else state.masks) is not None:
        was = "channels" if state.plan is not None else "single weights"
        raise UsageError(f"The training that is resumed pruned {was}; go on with the same cut.")


def _require_in_reach(model: nn.Module, request: Request) -> None:
    """Refuses what cannot be cut where it is, before it has trained."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and any(isinstance(module, fsdp.FullyShardedDataParallel) for module in model.modules()):
        raise UsageError("FSDP version 1 flattens the weights; use version 2, torch's fully_shard.")
    sharded = any(hasattr(parameter, "device_mesh") for parameter in model.parameters())
    if not isinstance(request, Zeros) and (sharded or processes() > 1 or isinstance(model, DistributedDataParallel)):
        raise UsageError(
            "Channels cannot be cut while several processes train the model (DDP, FSDP); cut it before the training, "
            "with plan_channels and apply, or use secateur.prune."
        )
