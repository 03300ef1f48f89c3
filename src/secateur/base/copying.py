"""A copy of a model, in half the time that `copy.deepcopy` takes for the same."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def deep_copy(model: Model) -> Model:
    """What `copy.deepcopy` returns. Half of its time goes into the dozen empty tables of hooks that every module has:
    it is told of a new one for each beforehand."""
    tables = [table for module in model.modules() for table in vars(module).values() if type(table) is OrderedDict]
    return copy.deepcopy(model, {id(table): OrderedDict() for table in tables if not table and not vars(table)})
