"""A copy of the user's model, for whatever must not touch the original."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import nn

from secateur.errors import UsageError, in_brief

__all__ = ["copy_of_model"]

Model = TypeVar("Model", bound=nn.Module)


def copy_of_model(model: Model, otherwise: str = "") -> Model:
    """`otherwise` ends the sentence with what else the user could do."""
    try:
        return copy.deepcopy(model)
    except Exception as error:  # the user's classes may raise anything
        raise UsageError(
            f"The model cannot be copied ({in_brief(error)}); let it hold no graph tensors, locks or files{otherwise}."
        ) from error
