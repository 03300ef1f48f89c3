"""The table of tensors goes by identity, and keeps none alive."""

from __future__ import annotations

from weakref import ref

import torch

from secateur.capture.tensor_table import TensorTable


def test_a_tensor_is_known_by_identity() -> None:
    table = TensorTable[str]()
    tensor, equal = torch.zeros(2), torch.zeros(2)
    table[tensor] = "known"
    assert (table.get(tensor), table.get(equal)) == ("known", None)


def test_a_tensor_lives_no_longer_than_without_the_table() -> None:
    table = TensorTable[str]()
    tensor = torch.zeros(2)
    table[tensor] = "known"
    alive = ref(tensor)
    del tensor
    assert alive() is None


def test_the_identity_of_a_tensor_that_is_gone_may_be_that_of_another() -> None:
    table = TensorTable[str]()
    tensor, later = torch.zeros(2), torch.zeros(2)
    table[tensor] = "known"
    table._known[id(later)] = table._known.pop(id(tensor))
    del tensor
    assert table.get(later) is None


def test_a_tensor_that_torch_holds_for_a_while_is_known_again() -> None:
    table = TensorTable[str]()
    weight, gradient = torch.zeros(2, requires_grad=True), torch.zeros(2)
    table[gradient] = "known"
    weight.grad = gradient
    del gradient  # only torch's own code has it now
    assert weight.grad is not None
    assert table.get(weight.grad) == "known"
