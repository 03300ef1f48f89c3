"""`load`: the pruned model again, without ever allocating the full-size one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from secateur.base import SecateurError, UsageError, explaining, unwrap
from secateur.checkpoint.pretrained import stored_numbers
from secateur.checkpoint.reading import Opened, open_checkpoint
from secateur.checkpoint.tensors import EXTRA_STATE, holds_meta, replace_tensors, tensors_of
from secateur.surgery import adopt_config, cut, dry_run_if_possible


def load(folder: str | Path, build_model: Callable[[], nn.Module]) -> nn.Module:
    """The pruned model that `secateur.save` wrote, on torch's default device, in the mode `build_model` leaves it in.

    Args:
        folder: a checkpoint. It is refused, with one sentence, unless all of it is whole and fits the architecture;
            nothing in it is ever run.
        build_model: a function without arguments that builds the full-size architecture. It is called on the meta
            device, where tensors take no memory. Only where that is not possible, because the code looks at values or
            keeps tensors out of reach, is it called once more for real.
    """
    with open_checkpoint(Path(folder)) as opened:
        model = built_on_meta(build_model)
        if model is not None:
            restore(opened, model)
            if not holds_meta(model):
                return model
        model = built_for_real(build_model)
        restore(opened, model)
        return model


def built_on_meta(build_model: Callable[[], nn.Module]) -> nn.Module | None:
    """None where that does not work."""
    if not callable(build_model):
        raise UsageError(f"build_model is a {type(build_model).__name__}; give a function that builds the model.")
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch tells that weights loaded there have no effect
            model = build_model()
    except Exception:  # what only works with values; where the fault is another, the next call shows it
        return None
    return model if isinstance(model, nn.Module) else None


def built_for_real(build_model: Callable[[], nn.Module]) -> nn.Module:
    with explaining("build_model failed", "give a function without arguments."):
        model = build_model()
    if not isinstance(model, nn.Module):
        raise UsageError(f"build_model returned a {type(model).__name__}; let it return the full-size model.")
    return model


def restore(opened: Opened, model: nn.Module) -> None:
    """Makes `model`, of the full-size architecture, the pruned one: cuts it, then puts the stored tensors into it."""
    module = unwrap(model)
    _require_architecture(module, opened)
    if opened.manifest.plan is not None:
        # A plan made up by somebody else may ask for anything.
        with explaining("The plan cannot be carried out", "save the model again.", SecateurError, but=(SecateurError,)):
            dry_run_if_possible(module, opened.manifest.plan)
            cut(module, opened.manifest.plan)
        adopt_config(module, stored_numbers(opened))
    tensors = tensors_of(module)
    replacements: dict[int, Tensor] = {}
    weights: dict[str, Tensor] = {}
    for name, tensor in tensors.state.items():
        own = opened.manifest.stored_name(name)
        if own not in weights:
            weights[own] = _laid_out_like(tensor, opened.weight(own))
        replacements.setdefault(id(tensor), of_the_same_kind(tensor, weights[own]))
    for name, tensor in tensors.extras.items():
        stored = opened.extra(name, tensor)
        if stored is not None and id(tensor) not in replacements:
            replacements[id(tensor)] = of_the_same_kind(tensor, _laid_out_like(tensor, stored))
    replace_tensors(module, replacements)
    for path, layer in module.named_modules():
        state = opened.extra(EXTRA_STATE + path)
        if state is not None:
            layer.set_extra_state(state)


def _laid_out_like(place: Tensor, stored: Tensor) -> Tensor:
    """On the device of the tensor that it replaces, and with its channels last if it has them last."""
    device = torch.get_default_device() if place.device.type == "meta" else place.device
    if place.stride() == stored.stride():
        return stored.to(device)
    return torch.empty_like(place, dtype=stored.dtype, device=device, requires_grad=False).copy_(stored)


def of_the_same_kind(place: Tensor, stored: Tensor) -> Tensor:
    """A parameter in the place of a parameter, trained or not as that one; tied ones share their memory."""
    if not isinstance(place, nn.Parameter):
        return stored
    trained = place.requires_grad and (stored.is_floating_point() or stored.is_complex())
    parameter = nn.Parameter(stored, requires_grad=trained)
    vars(parameter).update(vars(place))  # such as marks for the optimizer
    return parameter


def _require_architecture(module: nn.Module, opened: Opened) -> None:
    state = tensors_of(module).state
    if other := difference(opened.manifest.architecture, state):
        raise UsageError(
            f"The checkpoint is of another architecture ({other}); build the full-size model that was pruned."
        )
    _require_tying(state, opened)


def difference(architecture: Mapping[str, tuple[int, ...]], state: Mapping[str, Tensor]) -> str | None:
    """The first tensor that a model has otherwise than the architecture, to stand within a sentence."""
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    for name in sorted({*architecture, *found}):
        if architecture.get(name) != found.get(name):
            was, now = (f"of shape {s[name]}" if name in s else "missing" for s in (architecture, found))
            return f"{name} was {was}, but build_model has it {now}"
    return None


def _require_tying(state: Mapping[str, Tensor], opened: Opened) -> None:
    home: dict[int, str] = {}
    for name, tensor in state.items():
        own = opened.manifest.stored_name(name)
        if home.setdefault(id(tensor), own) != own:
            raise UsageError(
                f"build_model ties {name} to another weight, but the checkpoint holds it apart; build the model as it "
                "was when it was pruned."
            )
