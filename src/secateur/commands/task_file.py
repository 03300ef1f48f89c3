"""Task files: how the command line gets a user's model and data.

A task file is plain Python with these functions. `loss` and `metric` default to those of classification, `recipe` to
`secateur.Recipe()`, and `example_inputs` to what the loss gives the model for the first batch of `eval_data`. With
`calibration`, inputs to repair with, `train_data` is needed only to train:

    def model() -> nn.Module: ...
    def train_data() -> DataLoader: ...
    def eval_data() -> DataLoader: ...
    def calibration(): ...
    def example_inputs(): ...
    def loss(model, batch) -> Tensor: ...
    def metric(model, loader) -> float: ...
    def recipe() -> secateur.Recipe: ...
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from accelerate.utils import set_seed
from torch import nn

from secateur.base import (
    SecateurError,
    UsageError,
    did_you_mean_path,
    found_in_batch,
    in_brief,
    nearest,
    require_module,
    some_of,
)
from secateur.checkpoint import load_weights
from secateur.commands.one_sentence import file_errors_in_one_sentence
from secateur.loop import Loss, Metric, Recipe, accuracy, calling_as, classification_loss

_SIGNATURES = {
    "model": ("def model() -> nn.Module", 0),
    "train_data": ("def train_data() -> DataLoader", 0),
    "eval_data": ("def eval_data() -> DataLoader", 0),
    "calibration": ("def calibration()", 0),
    "example_inputs": ("def example_inputs()", 0),
    "loss": ("def loss(model, batch) -> Tensor", 2),
    "metric": ("def metric(model, loader) -> float", 2),
    "recipe": ("def recipe() -> secateur.Recipe", 0),
}
"""How each function is written, and how many arguments secateur gives it."""
_REQUIRED = ("model", "train_data", "eval_data")
_CLOSE = 0.7


def _none() -> None:
    """What a function returns that a file does not have."""


@dataclass(frozen=True)
class TaskFile:
    """A user's model and data. What the functions raise comes out as one sentence that names the file and line."""

    name: str
    model: Callable[[], Any]
    train_data: Callable[[], Any]
    """Gives None where the file has only inputs for calibration."""
    eval_data: Callable[[], Any]
    example_inputs: Callable[[], Any]
    loss: Loss
    metric: Metric
    recipe: Callable[[], Any] = Recipe
    calibration: Callable[[], Any] = _none

    def build_recipe(self, changes: Mapping[str, Any]) -> Recipe:
        """How to train, with changes from the command line."""
        recipe = self.recipe()
        if not isinstance(recipe, Recipe):
            raise UsageError(f"recipe() in {self.name} returns a {type(recipe).__name__}; return a secateur.Recipe.")
        return replace(recipe, **changes)

    def build_model(self, weights: str | Path | None = None) -> nn.Module:
        """The model, with the weights of a file of safetensors or `torch.save`; `FILE:ema` for those called ema."""
        model = self.model()
        if not isinstance(model, nn.Module):
            raise UsageError(f"model() in {self.name} returns a {type(model).__name__}; return the nn.Module.")
        require_module(model)
        if weights is not None:
            load_weights(model, Path(weights))
        return model

    def build_trained_model(self, seed: int, otherwise: str) -> nn.Module:
        """The model as model() loads it. It is built under two seeds: a weight that differs is random, not trained."""
        set_seed((seed + 1) % 2**32)
        other = dict(self.build_model().named_parameters())
        set_seed(seed)
        model = self.build_model()
        weights = {name: each for name, each in model.named_parameters() if each.requires_grad and each.ndim > 1}
        drawn = [name for name, weight in weights.items() if name in other and not torch.equal(weight, other[name])]
        if drawn:
            which = "The weights" if len(drawn) == len(weights) else f"The weights {some_of(drawn)}"
            raise UsageError(
                f"{which} of the model are random: model() in {self.name} returns others every time. Give trained ones "
                f"with --from, load them in model(), or {otherwise}."
            )
        return model


def load_task(spec: str | Path) -> TaskFile:
    """Runs a task file, given by its path or as `package.module`."""
    name = str(spec)
    is_path = isinstance(spec, Path) or name.endswith(".py") or len(Path(name).parts) > 1 or Path(name).exists()
    module = _run_file(Path(name)) if is_path else _import_module(name)
    shown = Path(name).name if is_path else name
    functions = {function: _find(module, function, shown) for function in _SIGNATURES}
    _refuse_misspelt(module, functions, shown)
    for function in _REQUIRED:
        if functions[function] is None and not (function == "train_data" and functions["calibration"]):
            raise UsageError(f"{shown} has no function {function}; add `{_SIGNATURES[function][0]}`.")
    model, eval_data = functions["model"], functions["eval_data"]
    loss = functions["loss"] or classification_loss
    return TaskFile(
        shown,
        model,
        functions["train_data"] or _none,
        eval_data,
        functions["example_inputs"] or functools.partial(_first_inputs, shown, model, eval_data, loss),
        loss,
        functions["metric"] or accuracy,
        functions["recipe"] or Recipe,
        functions["calibration"] or _none,
    )


def _run_file(path: Path) -> ModuleType:
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give the task file in it, such as {path / 'task.py'}.")
    if not path.is_file():
        raise UsageError(f"There is no task file {path}; {did_you_mean_path(path)}")
    # Processes that load data look the module up by the file's own name, so it takes another only where that is in use.
    name = path.stem if path.stem not in sys.modules else f"secateur_task_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file; give a task file such as task.py.")
    module = importlib.util.module_from_spec(spec)
    _find_modules_in(path.parent)
    sys.modules[name] = module  # dataclasses and pickling look their module up here
    try:
        with file_errors_in_one_sentence(path):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(name: str) -> ModuleType:
    _find_modules_in(Path.cwd())
    with file_errors_in_one_sentence(None):
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # a package on the way is there, but imports something that is not
            spec = None
        except (TypeError, ValueError):  # a name that no module can have
            spec = None
    if spec is None:
        advice = "give the path to a Python file, or a module that can be imported."
        raise UsageError(f"There is no task {name}; {did_you_mean_path(Path(f'{name}.py'), advice)}")
    with file_errors_in_one_sentence(Path(spec.origin or name)):
        return importlib.import_module(name)


def _find_modules_in(folder: Path) -> None:
    """Lets a task file import its neighbours, as a script can, also while its functions run later."""
    if (entry := str(folder.absolute())) not in sys.path:
        sys.path.insert(0, entry)


def _find(module: ModuleType, name: str, shown: str) -> Any:
    function = getattr(module, name, None)
    if function is None or (isinstance(function, ModuleType) and name not in _REQUIRED):
        return None  # a neighbour called metric.py, imported
    signature, arguments = _SIGNATURES[name]
    if not callable(function):
        kind = type(function).__name__
        raise UsageError(f"{name} in {shown} is a {kind}, not a function; write `{signature}` that returns it.")
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        raise UsageError(f"{name} in {shown} takes other arguments than it is given; write `{signature}`.") from None
    except ValueError:
        pass  # some callables of C do not tell
    return _in_one_sentence(function, module)


def _refuse_misspelt(module: ModuleType, functions: dict[str, Any], shown: str) -> None:
    """A function that is nearly called like a missing one would be ignored in silence."""
    missing = [name for name, function in functions.items() if function is None]
    for name, value in vars(module).items():
        own = inspect.isfunction(value) and value.__module__ == module.__name__
        spare = own and name not in functions and not name.startswith("_")
        if spare and (close := nearest(name, missing, _CLOSE)):
            raise UsageError(
                f"{shown} has a function {name}; did you mean {close}? If not, call it _{name}, so that it is clear "
                "that secateur does not need it."
            )


def _first_inputs(shown: str, model: Callable[[], Any], eval_data: Callable[[], Any], loss: Loss) -> Any:
    for batch in eval_data():
        try:
            return found_in_batch(model(), calling_as(loss), batch)
        except Exception as error:  # of the model, or of a loss that wants other batches
            if isinstance(error, UsageError) and "example_inputs" not in str(error):
                raise
            reason = str(error).partition(";")[0] if isinstance(error, SecateurError) else in_brief(error)
            raise UsageError(
                f"{shown} has no example_inputs, and none were found in eval_data ({reason}); "
                f"add `{_SIGNATURES['example_inputs'][0]}`."
            ) from error
    raise UsageError(f"eval_data in {shown} yields no batch; check the dataset and drop_last.")


def _in_one_sentence(function: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        with file_errors_in_one_sentence(Path(module.__file__ or module.__name__)):
            return function(*args)

    for name in ("__name__", "__qualname__"):
        setattr(wrapped, name, getattr(function, name, type(function).__name__))
    return wrapped
