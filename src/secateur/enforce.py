"""Puts masks in force on a model: once (`apply`), and again after every step of an optimizer (`hold`).

Masking gradients is not enough to keep a weight at zero: momentum, weight decay and orthogonalised updates (Muon) move
weights whose gradient is zero. So after every step, through the optimizer's own hook, the pruned weights *and* their
entries in the optimizer's state are set to zero again. The model itself carries no trace: no hook, no extra parameter
or buffer.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateur.channel_plan import Plan
from secateur.cut import cut
from secateur.errors import SecateurWarning, UsageError
from secateur.masks import LayerMask, Masks
from secateur.weights import unwrap

__all__ = ["Hold", "apply", "hold", "masked_parameters"]

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
    masks = plan
    for parameter, layer in masked_parameters(model, masks):
        _zero(parameter, _laid_out_like(parameter, layer.pruned()))
    return model


def _check(model: nn.Module, plan: Plan, prove: bool | None) -> None:
    if prove is False or (prove is None and plan.example_inputs is None):
        return
    from secateur.prove.rehearsal import is_cheap_to_prove, rehearse
    from secateur.prove.verify import NotProvable, verify

    if prove:
        verify(model, plan)
        return
    rehearse(model, plan)
    if is_cheap_to_prove(model, plan):
        with suppress(NotProvable):  # not asked for, so the rehearsal has to do
            verify(model, plan)


class Hold:
    """Masks in force on an optimizer, until `release` or the end of a `with` block."""

    def __init__(self, model: nn.Module, masks: Masks, optimizer: Optimizer) -> None:
        self.masks = masks
        self._optimizer = _stepping_optimizer(optimizer)
        self._held = [
            (parameter, _laid_out_like(parameter, layer.pruned()))
            for parameter, layer in masked_parameters(model, masks)
        ]
        self._warn_if_foreign()
        self._enforce()
        self._hook = self._optimizer.register_step_post_hook(self._after_step)

    def release(self) -> None:
        """Lets the optimizer move the weights again."""
        self._hook.remove()

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        for parameter, pruned in self._held:
            _zero(parameter, pruned)
            # .get, because indexing would create an empty state for parameters that the optimizer does not train.
            for value in self._optimizer.state.get(parameter, {}).values():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    _zero(value, pruned)


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


def _stepping_optimizer(optimizer: Optimizer) -> Optimizer:
    """The optimizer whose hooks run: accelerate's wrapper has none, and steps the one inside."""
    accelerate = sys.modules.get("accelerate.optimizer")  # where nobody has imported it, nothing is wrapped
    if accelerate is not None and isinstance(optimizer, accelerate.AcceleratedOptimizer):
        inner: Optimizer = optimizer.optimizer
        return inner
    return optimizer


def masked_parameters(model: nn.Module, masks: Masks) -> list[tuple[nn.Parameter, LayerMask]]:
    """Each masked parameter with its mask; all of them are checked before the first is handed out."""
    parameters = dict(unwrap(model).named_parameters(remove_duplicate=False))
    for name, layer in masks.layers.items():
        if name not in parameters:
            raise UsageError(f"The masks name {name}, which this model lacks; use the architecture they were made for.")
        shape = tuple(parameters[name].shape)
        if shape != layer.shape:
            raise UsageError(
                f"The mask of {name} has shape {layer.shape}, but the weight has {shape}; "
                "use the architecture the masks were made for."
            )
        if parameters[name].device.type == "meta":
            raise UsageError(f"{name} is on the meta device; load the model's weights first.")
    return [(parameters[name], layer) for name, layer in masks.layers.items()]


def _zero(tensor: Tensor, pruned: Tensor) -> None:
    """Zeroes the pruned positions of a parameter or of its optimizer state, whatever values are there now."""
    with torch.no_grad():
        _local(tensor).masked_fill_(pruned, 0)


def _laid_out_like(parameter: Tensor, pruned: Tensor) -> Tensor:
    """On the parameter's device, and for a parameter that FSDP has spread over processes, this process's part."""
    pruned = pruned.to(parameter.device)
    if hasattr(parameter, "device_mesh"):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(parameter, DTensor)
        return distribute_tensor(pruned, parameter.device_mesh, parameter.placements).to_local()
    return pruned


def _local(tensor: Tensor) -> Tensor:
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor
