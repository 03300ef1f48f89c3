"""A copy of a model is what `copy.deepcopy` makes of it."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import pytest
import torch
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


class CopiesItself(nn.Linear):
    def __deepcopy__(self, memo: dict[int, Any]) -> CopiesItself:
        copied = CopiesItself(self.in_features, self.out_features)
        copied.note = "its own way"  # type: ignore[assignment]
        return copied


class LeavesOut(nn.Linear):
    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "note": "left out"}


@pytest.mark.parametrize("kind", [CopiesItself, LeavesOut])
def test_a_module_that_says_how_it_is_copied_is_copied_so(kind: type[nn.Linear]) -> None:
    model = nn.Sequential(kind(2, 2))
    model[0].note = "unset"  # type: ignore[assignment]
    assert deep_copy(model)[0].note == copy.deepcopy(model)[0].note != "unset"


def test_recurrent_layers_and_cycles_are_copied() -> None:
    model = nn.Sequential(nn.LSTM(2, 3), nn.Linear(3, 1))
    model[1].owner = [model]  # type: ignore[assignment]
    copied = deep_copy(model)
    assert copied[1].owner[0] is copied  # type: ignore[index]
    assert copied[0]._flat_weights[0] is copied[0].weight_ih_l0 is not model[0].weight_ih_l0  # type: ignore[index]
    x = torch.randn(4, 1, 2)
    assert torch.equal(copied[0](x)[0], model[0](x)[0])
