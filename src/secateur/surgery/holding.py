"""`hold`: puts masks in force on a model again after every step of an optimizer.

Masking gradients is not enough to keep a weight at zero: momentum, weight decay and orthogonalised updates (Muon) move
weights whose gradient is zero. So after every step, through the optimizer's own hook, the pruned weights *and* their
entries in the optimizer's state are set to zero again. The model itself carries no trace: no hook, no extra parameter
or buffer.
"""

from __future__ import annotations

import sys
import warnings
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from secateur.base import SecateurWarning, UsageError, uninterrupted
from secateur.plans import Masks
from secateur.surgery.zeroing import pruned_positions, zero


class Hold:
    """Masks in force on an optimizer, until `release` or the end of a `with` block."""

    def __init__(self, model: nn.Module, masks: Masks, optimizer: Optimizer) -> None:
        self.masks = masks
        self._model = model
        self._optimizer = stepping_optimizer(optimizer)
        self._held = pruned_positions(model, masks)
        self._warn_if_foreign()
        try:
            with uninterrupted():
                self._enforce()
                self._hook = self._optimizer.register_step_post_hook(self._after_step)
        except BaseException:  # nobody gets what could release it
            if hook := vars(self).get("_hook"):
                hook.remove()
            raise

    def update(self, masks: Masks) -> None:
        """Puts other masks in the place of those in force, at once and after every step from here on."""
        held = pruned_positions(self._model, masks)
        with uninterrupted():
            self.masks, self._held = masks, held
            self._enforce()
        self._warn_if_foreign()

    def release(self) -> None:
        """Lets the optimizer move the weights again."""
        self._hook.remove()

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """An error or Ctrl-C within a step leaves weights that are not zero any more: they get their zeros again."""
        with uninterrupted():
            if kind is not None:
                self._enforce()
            self.release()

    def _warn_if_foreign(self) -> None:
        trained = {id(parameter) for group in self._optimizer.param_groups for parameter in group["params"]}
        masked = [parameter for parameter, _ in self._held if parameter.requires_grad]
        if masked and not any(id(parameter) in trained for parameter in masked):
            warnings.warn(
                "The optimizer trains none of the masked weights, so there is nothing to hold; "
                "create it from this model's parameters, after any copying or moving.",
                SecateurWarning,
                stacklevel=4,
            )

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._enforce()

    def _enforce(self) -> None:
        # .get, because indexing would create an empty state for parameters that the optimizer does not train.
        states = [
            (value, pruned)
            for parameter, pruned in self._held
            for value in self._optimizer.state.get(parameter, {}).values()
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape
        ]
        zero([*self._held, *states])


def hold(model: nn.Module, masks: Masks, optimizer: Optimizer) -> Hold:
    """Applies `masks` to `model` now and again after every step of `optimizer`.

    Works with any `torch.optim.Optimizer` and with accelerate's wrapper around one. The parameters are those that the
    model has now: wrap it in DDP or FSDP first, and call `hold` again after anything that replaces parameters, such as
    `load_state_dict(assign=True)`.

    Args:
        model: whose pruned weights are to stay zero.
        masks: of `plan_weights`. Masks of another architecture are refused, and nothing changes.
        optimizer: that trains the model. The entries of its state that belong to pruned weights are held at zero, too.

    Returns:
        What is in force until its `release` is called; in a `with` statement, until the block ends.
    """
    return Hold(model, masks, optimizer)


def stepping_optimizer(optimizer: Any) -> Optimizer:
    """The optimizer whose hooks run: accelerate's wrapper has none, and steps the one inside."""
    accelerate = sys.modules.get("accelerate.optimizer")  # where nobody has imported it, nothing is wrapped
    if accelerate is not None and isinstance(optimizer, accelerate.AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, Optimizer):  # DeepSpeed's own, for example
        raise UsageError(
            f"The optimizer is a {type(optimizer).__name__}, whose steps cannot be followed; use one of torch.optim."
        )
    return optimizer
