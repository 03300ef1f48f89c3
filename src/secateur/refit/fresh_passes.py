"""Passes that leave no trace: neither in the model nor in what it is given."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import nn

from secateur.base import as_call, copied, explaining, uninterrupted


def fresh_pass(model: nn.Module, batch: Any) -> tuple[nn.Module, Callable[[], Any]]:
    """A replica of the model and what runs it on the batch, in evaluation mode.

    The replica has the same parameters in modules of its own: a pass may leave things in a module that another would
    find there.
    """
    with (
        explaining("The model cannot be copied", "let it hold no graph tensors, locks or files."),
        uninterrupted(patience=1),  # torch turns gradients off while it copies a tensor
    ):
        own = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()}).eval()
    args, kwargs = copied(*as_call(batch))

    def run() -> Any:
        with explaining(
            "The model failed on a calibration batch",
            "give batches of its inputs alone, such as (images for images, labels in loader).",
        ):
            return own(*args, **kwargs)

    return own, run
