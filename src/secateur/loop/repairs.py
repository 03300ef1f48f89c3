"""`Repairer`: what follows a cut of the loop. What the cut left is fitted to the model as it was right before."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import distributed, nn

from secateur.base import (
    SecateurError,
    SecateurWarning,
    UsageError,
    as_call,
    explaining,
    found_in_batch,
    in_brief,
)
from secateur.loop.state import State
from secateur.loop.tuner import Tuner
from secateur.plans import Masks, Plan
from secateur.refit import Processes, read_batches, repair, share_of

LEAVE_OUT = "repair=0 leaves it out."


def require_examples(examples: object, calibration: Any) -> None:
    if isinstance(examples, bool) or not isinstance(examples, int) or examples < 0:
        raise UsageError(f"repair is {examples!r}; give a number of examples such as 512, or 0 for no repair.")
    if calibration is not None and not examples:
        raise UsageError("calibration is what a repair learns from, and repair is 0; leave one of them out.")


def read_calibration(calibration: Any, examples: int, seed: int) -> list[Any] | None:
    """The first examples. A loader that shuffles gives the same ones to a resumed run."""
    if calibration is None:
        return None
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return read_batches(calibration, examples)


def example_of(model: nn.Module, batch: Any) -> Any:
    """Of a calibration batch, what is enough to see how the model computes."""

    def run(model: nn.Module, batch: Any) -> None:
        args, kwargs = as_call(batch)
        model(*args, **kwargs)

    with explaining("The model fails on the calibration data", "give batches of its inputs alone."):
        return found_in_batch(model, run, batch)


class Repairer:
    """Learns from `calibration`; where there is none, from what the loss gives the model of the training data."""

    def __init__(self, examples: int, calibration: Sequence[Any] | None) -> None:
        self._examples = examples
        self._calibration = calibration
        self._inputs: Sequence[Any] = ()
        self._last_cut: tuple[nn.Module, Masks | Plan] | None = None

    def check(self, tuner: Tuner) -> None:
        """Refuses calibration data that the model does not take before the run has cost hours."""
        if self._calibration is not None:
            example_of(tuner.module, send_to_device(self._calibration[0], tuner.accelerator.device))

    def find_inputs(self, tuner: Tuner) -> None:
        """Anew for every repair, so that those of a resumed run are the same. Each process finds its share of them."""
        accelerator, processes = tuner.accelerator, tuner.accelerator.num_processes
        if self._calibration is not None:
            share = share_of(self._calibration, accelerator.process_index, processes)
            self._inputs = send_to_device(share, accelerator.device)
        else:
            with self._warning():
                share = -(-self._examples // processes)
                self._inputs = Processes(_group_of(accelerator)).here(lambda: tuner.training_inputs(share))

    def remember(self, tuner: Tuner, state: State, cut: Masks | Plan) -> None:
        """Right before a cut."""
        self._last_cut = tuner.plain_copy(state.plan), cut

    def repair(self, tuner: Tuner, state: State, show: bool) -> None:
        """After a cut, on the inputs that were found; where nothing was cut there is nothing to do."""
        cut, self._last_cut = self._last_cut, None
        inputs, self._inputs = self._inputs, ()
        if cut is None or not (inputs or self._calibration):
            return
        group, device = _group_of(tuner.accelerator), tuner.accelerator.device
        with self._warning():
            pruned = tuner.plain_copy(state.plan)
            models = Processes(group).here(lambda: [model.to(device) for model in (cut[0], pruned)])
            repair(models[1], cut[1], inputs, dense=models[0], examples=self._examples, group=group, progress=show)
            tuner.adopt(models[1])

    @contextmanager
    def _warning(self) -> Iterator[None]:
        """A run that can do without a repair goes on without it. One that was given data for it cannot."""
        try:
            yield
        except Exception as error:  # of the user's model and data, which may do anything
            if self._calibration is not None:
                raise
            reason = str(error).rstrip(".") if isinstance(error, SecateurError) else in_brief(error)
            warnings.warn(f"The model was not repaired ({reason}); {LEAVE_OUT}", SecateurWarning, stacklevel=2)


def _group_of(accelerator: Accelerator) -> distributed.ProcessGroup | None:
    return distributed.group.WORLD if accelerator.num_processes > 1 else None
