"""Which arguments of a model only its loss needs, such as labels: a deployed model does without them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from secateur.base.tensor_trees import Arguments, copied, tensors_by_path

Named = list[tuple[str, Tensor]]


def without_loss_arguments(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """The same call without what only the loss needs; `model` is in evaluation mode, and gradients are off.

    An argument is the loss's if the model runs without it, and its outputs stay what they are but for a loss: an output
    of no dimensions, or with "loss" in its name, that some argument takes with it when it is left out. A mask of ones
    takes no output with it, so it stays.
    """
    names = list(signature(model.forward).parameters)[: len(args)]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    whole = _outputs(model, given)
    may_be_loss = {i for i, (name, output) in enumerate(whole or []) if output.ndim == 0 or "loss" in name}
    if whole is None or not may_be_loss:
        return args, dict(kwargs)
    differing, losses = {}, set()
    for name in given:
        rest = _outputs(model, _without(given, {name}))
        differing[name] = _differing(whole, rest)
        if rest is not None and len(rest) < len(whole) and differing[name] <= may_be_loss:
            losses |= differing[name]
    needless = {name for name, outputs in differing.items() if outputs and outputs <= losses}
    if not needless or not _differing(whole, _outputs(model, _without(given, needless))) <= losses:
        return args, dict(kwargs)
    kept = next((i for i, name in enumerate(names) if name in needless), len(args))
    return args[:kept], _without(given, {*needless, *names[:kept]})


def _without(given: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in names}


def _outputs(model: nn.Module, given: Mapping[str, Any]) -> Named | None:
    """None where the model fails. Whatever is random in it is the same every time."""
    with suppress(Exception), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        _, kwargs = copied((), dict(given))
        return list(tensors_by_path(model(**kwargs)))
    return None


def _differing(whole: Named, rest: Named | None) -> set[int]:
    """Which outputs are others, or gone; all of them where what is left is no part of the whole."""
    if rest is None or len(rest) > len(whole):
        return set(range(len(whole)))
    if len(rest) == len(whole):
        return {i for i, (a, b) in enumerate(zip(whole, rest, strict=True)) if not _same(a[1], b[1])}
    gone, found = set(), 0
    for i, (_, output) in enumerate(whole):
        if found < len(rest) and _same(output, rest[found][1]):
            found += 1
        else:
            gone.add(i)
    return gone if found == len(rest) else set(range(len(whole)))


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.allclose(a, b, equal_nan=True) if a.is_floating_point() else torch.equal(a, b)
