"""`TrainingPruner`: follows a training by the optimizer's step hook, and cuts where its agenda says so."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from torch import distributed, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from secateur.base import SecateurWarning, UsageError, named_tensors, uninterrupted, unwrap
from secateur.integrations.pruning_state import PruningState
from secateur.loop import Pruner, State
from secateur.plans import Masks, Plan, Zeros
from secateur.surgery import (
    Hold,
    apply,
    checked,
    cut,
    hold,
    require_own,
    stepping_optimizer,
    warn_about_config,
)

OnCut = Callable[[Masks | Plan, int], object]
Planned = TypeVar("Planned", bound=Masks | Plan)


class TrainingPruner:
    """Prunes a model while it trains, until `release` or the end of a `with` block."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        pruner: Pruner,
        agenda: dict[int, float],
        on_cut: OnCut,
        state: PruningState | None,
    ) -> None:
        self.state = state or PruningState()
        self._model = model
        self._optimizer = stepping_optimizer(optimizer)
        self._pruner, self._agenda, self._on_cut = pruner, agenda, on_cut
        self._hold: Hold | None = None
        if isinstance(pruner.request, Zeros):
            self._hold = hold(model, self.state.masks or Masks({}), self._optimizer)
        else:
            require_own(self._optimizer, self.module)
        try:
            if state is None:
                _require_effect(pruner.check(self))
            self._cut_if_due()
            self._hook: RemovableHandle | None  # behind that of the hold
            self._hook = self._optimizer.register_step_post_hook(self._after_step)
        except BaseException:
            if self._hold is not None:
                self._hold.release()
            raise

    @property
    def module(self) -> nn.Module:
        """The model without the wrappers of `torch.compile` and DDP."""
        return unwrap(self._model)

    @property
    def masks(self) -> Masks | None:
        """Those in force, with `Zeros`."""
        return self.state.masks

    @property
    def plan(self) -> Plan | None:
        """All cuts of channels so far, as one."""
        return self.state.plan

    def save(self, folder: str | Path) -> None:
        """Writes how far it is beside your checkpoint, for `resume`: `pruning.json`, and the masks where there are any.

        The folder has to be there. In several processes, call it in one.
        """
        self.state.save(folder)

    def release(self) -> None:
        """Ends it. What is pruned stays pruned, also where an error or Ctrl-C came in the middle of a step."""
        with uninterrupted():
            if self._hook is None:  # what happened to the model later is not ours
                return
            self._hook.remove()
            self._hook = None
            if self._hold is not None:
                self._hold.release()
            if self.masks is not None:
                apply(self.module, self.masks)

    def __enter__(self) -> TrainingPruner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        if kind is None:
            self.warn_if_early()

    def warn_if_early(self) -> None:
        """For the end of a training that came before the last cut."""
        if self.state.progress < 1:
            warnings.warn(
                f"The training ended after {self.state.step} steps, before the last cut after {max(self._agenda)}; "
                "the model is pruned less than you asked for.",
                SecateurWarning,
                stacklevel=3,
            )

    def agree(self, plan: Planned) -> Planned:
        """The first process's plan or masks, in every process."""
        agreed = [plan]
        if processes() > 1:
            distributed.broadcast_object_list(agreed)
        return agreed[0]

    def gradients(self) -> AbstractContextManager[None]:
        """Those that the last step has left."""
        return nullcontext()

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.state = replace(self.state, step=self.state.step + 1)
        self._cut_if_due()

    def _cut_if_due(self) -> None:
        due = [progress for step, progress in self._agenda.items() if step <= self.state.step]
        progress = max(due, default=0.0)
        if progress <= self.state.progress:
            return
        before = State(masks=self.masks, plan=self.plan)
        planned = self._pruner.planned(self, before, progress, show=False)
        if isinstance(planned, Plan):
            self._cut(planned, progress)
        elif planned is not None:
            self._raise_to(planned, progress)
        else:
            self.state = replace(self.state, progress=progress)

    def _cut(self, plan: Plan, progress: float) -> None:
        whole, reason = checked(self.module, plan)
        with uninterrupted(patience=1):
            cut(self.module, whole, self._optimizer)
            self.state = replace(self.state, progress=progress, plan=followed_by(self.plan, plan))
            self._on_cut(plan, self.state.step)
        warn_about_config(reason)

    def _raise_to(self, masks: Masks, progress: float) -> None:
        assert self._hold is not None
        with uninterrupted(patience=1):
            self._hold.update(masks)
            self.state = replace(self.state, progress=progress, masks=masks, zeros=masks.zeros)
            self._on_cut(masks, self.state.step)


def followed_by(first: Plan | None, later: Plan) -> Plan:
    return later if first is None else first.then(later)


def cut_as_before(model: nn.Module, plan: Plan | None, optimizer: Optimizer | None = None) -> None:
    """Gives a model the widths that it had when it was saved, unless it has them."""
    if plan is None:
        return
    shapes = {name: tuple(tensor.shape) for name, tensor in named_tensors(unwrap(model)).items()}
    if any(shapes.get(name) != each.new_shape for name, each in plan.tensors.items()):
        apply(model, plan, optimizer=None if optimizer is None else stepping_optimizer(optimizer))


def left_by(planned: Masks | Plan) -> dict[str, float]:
    """What a cut has left, as numbers for a log."""
    if isinstance(planned, Masks):
        return {"sparsity": planned.sparsity, "zeros": planned.zeros}
    return {"parameters": planned.parameters[1], "macs": planned.macs[1]}


def _require_effect(planned: Masks | Plan) -> None:
    if isinstance(planned, Masks) and not planned.zeros:
        raise UsageError("The amount is so small that it prunes no weight; give a larger one.")


def processes() -> int:
    """How many train together."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
