"""`save`: a pruned model into a folder, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from secateur.base import SecateurError, UsageError, in_brief, saving, unwrap, write_text
from secateur.checkpoint.applied import as_one, require_cut
from secateur.checkpoint.contents import Contents, contents_of
from secateur.checkpoint.exchange import exchange_files
from secateur.checkpoint.manifest import EXTRAS_FILE, WEIGHTS_FILE, Manifest
from secateur.checkpoint.pretrained import CONFIG_FILE, config_of_pruned
from secateur.checkpoint.sealed import versions_now
from secateur.checkpoint.tensors import ModelTensors, tensors_of
from secateur.plans import Masks, Plan
from secateur.surgery import NotExpressible


def save(
    model: nn.Module,
    plan: Plan | Masks | Sequence[Plan | Masks],
    folder: str | Path,
    *,
    metrics: Any = None,
    settings: Any = None,
    dense: bool = False,
) -> None:
    """Writes a pruned model to `folder`, for `secateur.load`. Killed on the way, it leaves the checkpoint of before.

    Args:
        model: after the plan was applied to it.
        plan: what was applied; several plans in their order, masks last.
        folder: gets `secateur.json`, `model.safetensors` and, where needed, `extras.safetensors`. A transformers model
            whose config can say its new widths also gets a `config.json`, for `from_pretrained`.
        metrics: whatever JSON can hold, to be kept with the model; so are `settings`.
        dense: store masked weights with their zeros, for other programs to read; by default only what is left of them.
    """
    module, path = unwrap(model), Path(folder)
    whole_plan, masks = as_one(plan)
    if whole_plan is not None:
        require_cut(module, whole_plan)
    noted = {"metrics": _as_json("metrics", metrics), "settings": _as_json("settings", settings)}
    tensors = tensors_of(module)
    contents = contents_of(module, tensors, masks, dense)
    config, reason = _config(module, whole_plan, contents)
    if not contents.written_here:
        return
    had_config = _has_own_config(path)
    manifest_of = partial(
        Manifest,
        architecture=_full_shapes(tensors, contents, whole_plan),
        tied=contents.tied,
        plan=whole_plan,
        masks=masks.described if masks else None,
        packed=tuple(contents.packed),
        versions=versions_now(),
        not_from_pretrained=reason,
        **noted,
    )
    extras = {EXTRAS_FILE: contents.extras} if contents.extras else {}
    exchange_files(path, Manifest, {WEIGHTS_FILE: contents.weights, **extras}, manifest_of)
    if config is not None:
        write_text(path / CONFIG_FILE, config)
    elif had_config:
        with saving(path / CONFIG_FILE):
            (path / CONFIG_FILE).unlink(missing_ok=True)


def _as_json(option: str, value: Any) -> Any:
    """As it will be read back, keys as text."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{option} cannot be written as JSON ({in_brief(error)}); give numbers, text, lists and dicts of them."
        ) from error


def _config(module: nn.Module, plan: Plan | None, contents: Contents) -> tuple[str | None, str | None]:
    """The config for `from_pretrained`, or the reason why there is none."""
    try:
        config = config_of_pruned(module, plan)
    except NotExpressible as reason:
        return None, str(reason)
    if contents.packed:
        return None, "its masked weights are packed; save it with dense=True"
    return config, None


def _full_shapes(tensors: ModelTensors, contents: Contents, plan: Plan | None) -> dict[str, tuple[int, ...]]:
    """Those of the model before the cut, which the plan knows."""
    if plan is None:
        return {name: tuple(tensor.shape) for name, tensor in tensors.state.items()}
    cuts = plan.tensors
    homes = {name: plan.name_before(contents.tied.get(name, name)) for name in tensors.state}
    left = {
        plan.name_before(name): cuts[homes[name]].shape if homes[name] in cuts else tuple(tensor.shape)
        for name, tensor in tensors.state.items()
    }
    return {**left, **{name: cut.shape for name, cut in cuts.items() if cut.is_empty}}


def _has_own_config(folder: Path) -> bool:
    """Whether the config there is of the checkpoint that is replaced, rather than a file of the user's."""
    try:
        with Manifest.open(folder) as opened:
            return Manifest.read(opened).not_from_pretrained is None
    except SecateurError:
        return False
