"""What is done to a user's model on the way: its mode, copies, wrappers."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from secateur.base.errors import UsageError
from secateur.base.models import (
    copy_of_model,
    evaluating,
    named_tensors,
    parameters_and_buffers,
    require_module,
    training,
    unwrap,
    walked,
)


def test_modes_put_every_flag_back() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[0].eval()
    with evaluating(model):
        assert not model.training
        assert not model[1].training
    with training(model):
        assert model[1].training
        assert not model[0].training, "a part that its author froze stays frozen"
    assert [module.training for module in model.modules()] == [True, False, True]
    model.eval()
    with training(model):
        assert model[0].training
    assert not model[0].training


def test_a_compiled_model_is_unwrapped_and_what_is_no_model_refused() -> None:
    model = nn.Linear(2, 2)
    assert unwrap(torch.compile(model)) is model
    assert unwrap(model) is model
    averaged = AveragedModel(torch.compile(model))
    assert type(unwrap(averaged)) is nn.Linear
    assert unwrap(averaged).weight is averaged.module._orig_mod.weight
    with pytest.raises(UsageError, match=r"The model is a str; pass the nn\.Module that holds the weights"):
        require_module("resnet18")


def test_a_model_that_cannot_be_copied_says_what_to_do() -> None:
    model = nn.Linear(2, 2)
    model.lock = threading.Lock()
    with pytest.raises(UsageError, match=r"cannot be copied \(TypeError: .*; let it hold no .*, or pass copy=False\.$"):
        copy_of_model(model, ", or pass copy=False")


def test_torchscript_is_refused_in_a_sentence() -> None:
    with pytest.warns(DeprecationWarning, match="torch.jit.script"):
        scripted = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(UsageError, match=r"is a TorchScript module, .*; pass the nn.Module that it was made from"):
        require_module(scripted)


class Shared(nn.Module):
    """A part in two places, a list without an entry, and tensors of several names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(2, 3, bias=False), nn.BatchNorm1d(3))
        self.nothing = None
        self.register_module("missing", None)
        self.again = nn.ModuleDict({"norm": self.first[1], "deep": nn.Sequential(nn.Sequential(self.first))})
        self.weight = self.first[0].weight
        self.register_buffer("count", torch.zeros(1), persistent=False)
        self.register_buffer("unset", None)


def test_modules_and_tensors_are_found_as_torch_finds_them() -> None:
    model = Shared()
    assert walked(model) == list(model.named_modules())
    assert walked(model, every_name=True) == list(model.named_modules(remove_duplicate=False))
    parameters, buffers = parameters_and_buffers(model)
    assert same(parameters, model.named_parameters(remove_duplicate=False))
    assert same(buffers, model.named_buffers(remove_duplicate=False))
    assert same(named_tensors(model), [*parameters.items(), *buffers.items()])


def same(found: dict[str, Tensor], expected: Iterable[tuple[str, Tensor]]) -> bool:
    """The very tensors, in this order."""
    return [(name, id(each)) for name, each in found.items()] == [(name, id(each)) for name, each in expected]
