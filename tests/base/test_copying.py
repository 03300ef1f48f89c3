"""A copy of a model is what `copy.deepcopy` makes of it."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

from torch import nn

from secateur.base.copying import deep_copy


def tables(model: nn.Module) -> list[OrderedDict[Any, Any]]:
    return [value for module in model.modules() for value in vars(module).values() if isinstance(value, OrderedDict)]


def test_no_table_of_hooks_is_shared_and_none_is_lost() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    calls: list[int] = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    copied, deeply = deep_copy(model), copy.deepcopy(model)
    assert [len(table) for table in tables(copied)] == [len(table) for table in tables(deeply)]
    assert len({id(table) for table in (*tables(model), *tables(copied))}) == 2 * len(tables(model))
    copied[1].register_forward_hook(lambda *_: None)
    assert not model[1]._forward_hooks


def test_what_modules_share_their_copies_share() -> None:
    shared: OrderedDict[str, int] = OrderedDict()
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].own, model[1].own = shared, shared  # type: ignore[assignment]
    model[1].weight = model[0].weight
    copied = deep_copy(model)
    assert copied[0].own is copied[1].own is not shared
    assert copied[0].weight is copied[1].weight is not model[0].weight


def test_a_table_with_attributes_keeps_them() -> None:
    model = nn.Linear(2, 2)
    model.own = OrderedDict()  # type: ignore[assignment]
    model.own.note = [1]  # type: ignore[attr-defined]
    copied = deep_copy(model)
    assert copied.own.note == [1]  # type: ignore[attr-defined]
    assert copied.own.note is not model.own.note  # type: ignore[attr-defined]
