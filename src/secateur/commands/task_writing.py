"""The text of a new task file, from the templates in `task_templates/`: one for each kind of task."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from secateur.base import UsageError, require_one_of
from secateur.commands.task_models import SMALL_RESNET, TaskModel, find_model, require_package

KINDS = {
    "image-folder": "torchvision",
    "timm": "timm",
    "torchvision": "torchvision",
    "text-classification": "transformers",
    "language-model": "transformers",
    "detection": "torchvision",
}
"""The kinds of task, and the package that each needs."""
_TEMPLATES = {"timm": "images", "torchvision": "images"}
"""Of the kinds whose template is not called like them."""
_SMALL_MODELS = {"timm": "timm:resnet10t", "torchvision": "torchvision:resnet18"}
"""Of the kinds whose template has none."""


def task_text(file: Path, kind: str | None, model: str | None) -> tuple[str, str]:
    """The file's text, and how to prune what is in it."""
    if kind is not None:
        require_one_of("kind of task", kind, KINDS)
        require_package(KINDS[kind], f"--for {kind}")
    name = model or _SMALL_MODELS.get(kind or "")
    found = find_model(name) if name else SMALL_RESNET if kind == "image-folder" else None
    if found is not None:
        kind = _fitting(kind, found, str(name))
    typed = quote(str(file))
    prune = f"secateur prune {typed} {'' if found and found.is_trained else '--train 3 '}--channels 50%"
    return _filled(_TEMPLATES.get(kind or "", kind or "own"), file=typed, prune=prune, model=found), prune


def _fitting(kind: str | None, model: TaskModel, name: str) -> str:
    """The kind of task, which may follow from the model."""
    fitting = " or ".join(f"--for {each}" for each in model.kinds)
    if kind is None and not model.is_clear:
        raise UsageError(f"The architecture of {name} is {model.name}, which has several uses; add {fitting}.")
    if kind is not None and kind not in model.kinds:
        raise UsageError(f"--for {kind} has no use for {name} ({model.name}); write {fitting}, or leave --for out.")
    return kind or model.kinds[0]


def _filled(template: str, **values: object) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("secateur.commands", "task_templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return templates.get_template(f"{template}.py.jinja").render(values)
