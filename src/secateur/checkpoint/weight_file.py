"""Trained weights from a file into a model, strictly: every tensor finds its place, or the call says which do not."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from secateur.base import UsageError, did_you_mean_path, in_brief, some_of
from secateur.checkpoint.tensors import MASK, tied_names


def load_weights(model: nn.Module, file: Path) -> None:
    """Fills `model` from safetensors, or from a state dict that `torch.save` wrote. No pickled code is run."""
    state = _read(file)
    own = model.state_dict()
    tied = tied_names({name: value for name, value in own.items() if isinstance(value, Tensor)})
    stored = {tied.get(name, name) for name in state}  # each tensor under one of its names
    missing = [name for name in own if tied.get(name, name) not in stored]
    unknown = [name for name in state if name not in own]
    reshaped = [name for name in state if name in own and _shape(state[name]) != _shape(own[name])]
    if any(name.startswith(MASK) for name in unknown):
        raise UsageError(
            f"{file} holds packed weights without their zeros; load them with secateur.load, or save with dense=True."
        )
    if missing or unknown or reshaped:
        differences = [f"missing: {some_of(missing)}"] if missing else []
        differences += [f"unknown to the model: {some_of(unknown)}"] if unknown else []
        differences += [f"{n} is {_shape(state[n])}, not {_shape(own[n])}" for n in reshaped[:1]]
        raise UsageError(
            f"{file} does not fit the model ({'; '.join(differences)}); give the weights of the architecture that "
            "model() builds."
        )
    model.load_state_dict(state, strict=False)  # tied weights are stored once


def _read(file: Path) -> Mapping[str, Any]:
    if file.is_dir():
        raise UsageError(f"{file} is a folder; give a file of weights, such as {file / 'model.safetensors'}.")
    if not file.is_file():
        raise UsageError(f"There is no file {file}; {did_you_mean_path(file)}")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's reader raises anything at all where a file is damaged
        # torch's own message would advise to run the code in the file
        pickled = isinstance(error, pickle.UnpicklingError)
        reason = "it is not a state dict of tensors alone" if pickled else in_brief(error)
        raise UsageError(
            f"{file} holds no weights that can be read ({reason}); write them with safetensors.torch.save_model(model, "
            "file) or torch.save(model.state_dict(), file)."
        ) from error
    if not isinstance(state, Mapping) or not any(isinstance(value, Tensor) for value in state.values()):
        held = (
            f"a dict of {', '.join(map(str, list(state)[:3]))}" if isinstance(state, Mapping) else type(state).__name__
        )
        raise UsageError(f"{file} holds {held}, not a state dict; write torch.save(model.state_dict(), file).")
    return state


def _shape(value: Any) -> str:
    return "×".join(map(str, value.shape)) or "a number" if isinstance(value, Tensor) else type(value).__name__
