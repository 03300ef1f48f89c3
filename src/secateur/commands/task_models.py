"""The model that a new task file starts from: the line of Python that builds it, and which kinds of task it is for."""

from __future__ import annotations

import importlib
import json
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from secateur.base import UsageError, did_you_mean, did_you_mean_path, explaining, read_json

_SMALL = 32
"""Pixels across an image, for models that take any size: larger ones take longer."""
_LENGTH = 128
"""Tokens of a text, for models that take as many."""
_CLASSES = 10
_OBJECTS = 4
"""Of the scenes to detect in, with the background."""
_BY_ENDING = {
    "ForSequenceClassification": ("text-classification", "language-model"),
    "ForCausalLM": ("language-model", "text-classification"),
    "LMHeadModel": ("language-model", "text-classification"),
    "ForImageClassification": ("image-folder",),
}
"""What a folder's architecture is called at its end, and the kinds of task for it: the first where nobody says."""


@dataclass(frozen=True)
class TaskModel:
    """What the template of a task file needs to know of its model."""

    name: str
    kinds: tuple[str, ...]
    """Of tasks that it can be the model of."""
    is_clear: bool = True
    """Whether the first kind is meant where nobody says."""
    code: str = ""
    advice: str = ""
    imports: tuple[str, ...] = ()
    later_imports: tuple[str, ...] = ()
    example: str = ""
    """Its name in secateur.examples, where it comes from there."""
    folder: str = ""
    """As Python writes it."""
    is_trained: bool = False
    size: int = _SMALL
    length: int = _LENGTH


SMALL_RESNET = TaskModel(
    "ResNet18", ("image-folder",), code="ResNet18(widths=(16, 32, 64, 128), classes=10)", example="ResNet18, ", size=28
)


def find_model(name: str) -> TaskModel:
    """The model of `--model`: timm:NAME, torchvision:NAME, or a folder that `save_pretrained` wrote."""
    library, _, model = name.partition(":")
    if library == "timm":
        return _of_timm(model)
    if library == "torchvision":
        return _of_torchvision(model)
    return _of_folder(Path(name))


def require_package(package: str, wanted: str) -> None:
    if find_spec(package) is None:
        raise UsageError(f"{wanted} needs {package}, which is not installed; run `pip install {package}`.")


def _imported(package: str) -> Any:
    require_package(package, f"--model {package}:…")
    with explaining(f"{package} cannot be imported", "install it again, in a version for this torch."):
        return importlib.import_module(package)


def _of_timm(name: str) -> TaskModel:
    timm = _imported("timm")
    if not timm.is_model(name):
        hint = did_you_mean(name, timm.list_models(), "see timm.list_models().")
        raise UsageError(f"timm has no model {name!r}; {hint}")
    return TaskModel(
        name,
        ("timm", "image-folder"),
        code=f"timm.create_model({json.dumps(name)}, pretrained=False, num_classes={_CLASSES})",
        advice="pretrained=True fetches trained weights",
        imports=("import timm",),
        size=_smallest_size(timm, name),
    )


def _smallest_size(timm: Any, name: str) -> int:
    """Of images that the model takes; that of its own, where it is made for one size."""
    import torch

    for size in (_SMALL, 2 * _SMALL, 3 * _SMALL):
        with suppress(Exception), torch.device("meta"), torch.no_grad():  # which takes no memory and little time
            timm.create_model(name).eval()(torch.empty(1, 3, size, size))
            return size
    return int(timm.get_pretrained_cfg_value(name, "input_size")[-1])


def _of_torchvision(name: str) -> TaskModel:
    models = _imported("torchvision").models
    classifiers, detectors = models.list_models(module=models), models.list_models(module=models.detection)
    if name not in [*classifiers, *detectors]:
        if name in models.list_models():
            hint = "init has no example for; put it into a file that `secateur init` writes without --model."
            raise UsageError(f"torchvision's {name} is for a task that {hint}")
        hint = did_you_mean(name, [*classifiers, *detectors], "see torchvision.models.list_models().")
        raise UsageError(f"torchvision has no model {name!r}; {hint}")
    if name.startswith(("maskrcnn", "keypointrcnn")):
        raise UsageError(f"{name} learns from more than boxes; choose a detector of boxes, such as {detectors[0]}.")
    smallest = models.get_model_weights(name).DEFAULT.meta.get("min_size", (1, 1))
    options = ", weights_backbone=None" if name in detectors else ""
    options += ", aux_logits=False" if name in ("googlenet", "inception_v3") else ""  # else they return three answers
    count = _OBJECTS if name in detectors else _CLASSES
    return TaskModel(
        name,
        ("detection",) if name in detectors else ("torchvision", "image-folder"),
        code=f"get_model({json.dumps(name)}, weights=None{options}, num_classes={count})",
        advice='weights="DEFAULT" fetches trained ones, for as many classes as they know',
        later_imports=("from torchvision.models import get_model",),
        size=max(_SMALL, *smallest),
    )


def _of_folder(folder: Path) -> TaskModel:
    if not folder.is_dir():
        otherwise = "give timm:NAME, torchvision:NAME, or a folder that save_pretrained wrote."
        raise UsageError(f"There is no folder {folder}; {did_you_mean_path(folder, otherwise, folder=True)}")
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} has no config.json; give a folder that save_pretrained wrote.")
    require_package("transformers", f"--model {folder}")
    with explaining(f"{folder / 'config.json'} cannot be read", "save the model again."):
        config = dict(read_json(folder / "config.json"))
        architecture = str(next(iter(config.get("architectures") or []), "")) or "not said"
        longest = config.get("max_position_embeddings") or config.get("n_positions") or _LENGTH
        length, sizes = min(_LENGTH, int(longest)), config.get("image_size") or 224
        size = int(max(sizes) if isinstance(sizes, list) else sizes)  # it is written as code: nothing but a number
    written = json.dumps(str(folder), ensure_ascii=False)
    kinds = next((kinds for ending, kinds in _BY_ENDING.items() if architecture.endswith(ending)), None)
    return TaskModel(
        architecture,
        kinds or ("text-classification", "language-model", "image-folder"),
        is_clear=kinds is not None,
        code=f"AutoModelForImageClassification.from_pretrained({written})",
        later_imports=("from transformers import AutoModelForImageClassification",),
        folder=written,
        is_trained=True,
        size=size,
        length=length,
    )
