"""Example inputs as people give them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from secateur.base.errors import UsageError
from secateur.base.inputs import as_call, batch_of, found_in_batch, found_in_batches, in_signature_order, input_tensors
from secateur.base.inputs import with_batch as resized
from secateur.base.tensor_trees import tensors_by_path, tensors_in

X, Y = torch.arange(6.0).reshape(3, 2), torch.arange(3)


class Sum(nn.Module):
    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return x.sum() + (0 if y is None else y.sum())


@dataclass
class Batch:
    pixels: Tensor
    labels: list[Tensor]


def test_a_tensor_a_tuple_and_a_dict_are_calls() -> None:
    assert as_call(X) == ((X,), {})
    assert as_call([X, 2]) == ((X, 2), {})
    assert as_call({"x": X}) == ((), {"x": X})
    for wrong in (3, {1: X}):
        with pytest.raises(UsageError, match="example_inputs is a"):
            as_call(wrong)


def test_the_batch_is_the_first_axis_of_the_first_tensor_that_has_one() -> None:
    assert batch_of((torch.tensor(1.0), X)) == 3
    assert batch_of({"scale": 2.0}) == 0
    assert [list(tensor.shape) for tensor in input_tensors((2, {"x": X, "y": [Y]}))] == [[3, 2], [3]]


def test_another_batch_is_made_of_the_same_examples() -> None:
    larger = resized({"x": X, "scale": torch.ones(5), "flag": True}, 4)
    assert larger["x"].tolist() == [[0, 1], [2, 3], [4, 5], [0, 1]]
    assert larger["scale"].shape == (5,), "its first axis is not the batch"
    assert larger["flag"] is True
    assert resized(X, 1).tolist() == [[0, 1]]
    assert resized(torch.tensor(1.0), 7).ndim == 0


def test_keyword_arguments_are_ordered_as_the_model_declares_them_without_none() -> None:
    assert list(in_signature_order(Sum(), {"y": Y, "x": X})) == ["x", "y"]
    assert list(in_signature_order(Sum(), {"y": None, "x": X})) == ["x"]
    assert in_signature_order(Sum(), X) is X


def test_tensors_are_found_in_attributes_where_objects_count() -> None:
    tree = {"a": [X, Batch(Y, [X])], "b": "text"}
    assert [id(tensor) for tensor in tensors_in(tree)] == [id(X), id(Y), id(X)]
    assert [id(tensor) for tensor in tensors_in(tree, objects=False)] == [id(X)]


def test_the_way_to_a_tensor_is_its_keys_fields_and_indices() -> None:
    tree = {"a": [X, Batch(Y, [X])], 3: (Y,), "max": torch.return_types.max((X, Y))}
    paths = [path for path, _ in tensors_by_path(tree)]
    assert paths == ["a.0", "a.1.pixels", "a.1.labels.0", "3.0", "max.0", "max.1"]
    assert list(tensors_by_path(X)) == [("", X)]


class Pooled(nn.Module):
    """Squeezes whatever axis is of length 1, the batch as well, and refuses batches below `least`."""

    def __init__(self, least: int = 1) -> None:
        super().__init__()
        self.least = least

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        if len(x) < self.least:
            raise ValueError("too few")
        return x.mean(1, keepdim=True).squeeze()


def test_what_the_loss_gives_the_model_is_found_and_shortened_to_one_example() -> None:
    found = found_in_batch(Sum(), lambda model, batch: model(batch[0], y=batch[1]), (X, Y))
    assert isinstance(found, dict)
    assert found["x"].tolist() == [[0, 1]]
    assert found["y"].tolist() == [0]
    with pytest.raises(UsageError, match="does not call the model"):
        found_in_batch(Sum(), lambda model, batch: batch[0].sum(), (X, Y))


@pytest.mark.parametrize(("least", "examples"), [(1, 2), (2, 2), (3, 3)])
def test_a_model_that_squeezes_or_refuses_one_example_gets_more(least: int, examples: int) -> None:
    (found,) = found_in_batch(Pooled(least), lambda model, batch: model(batch), X)
    assert len(found) == examples


def test_a_number_among_the_inputs_stays_what_it_is() -> None:
    found = found_in_batch(Sum(), lambda model, batch: model(batch, y=torch.tensor(2.0)), X)
    assert isinstance(found, dict)
    assert (found["x"].shape, found["y"].item()) == ((1, 2), 2.0)


def test_whole_batches_are_found_until_there_are_enough_examples() -> None:
    asked_for = []

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(9):
            asked_for.append(number)
            yield X + number, Y

    found = list(found_in_batches(Sum(), lambda model, batch: model(batch[0], y=batch[1]), batches(), len(X) + 1))
    assert asked_for == [0, 1], "no more than are needed"
    assert [torch.equal(each["x"], X + number) for number, each in enumerate(found)] == [True, True]


def test_the_model_runs_on_the_first_batch_alone() -> None:
    class OfTheFirst(Sum):
        def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
            assert x[0, 0] == X[0, 0], "it need not run to show what it is called with"
            return super().forward(x, y)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        try:
            return model(batch)
        except Exception:  # as careful losses have it
            return torch.zeros(())

    model = OfTheFirst()
    found = list(found_in_batches(model, loss, [X, X + 1, X + 2], 99))
    assert [each[0][0, 0].item() - X[0, 0].item() for each in found] == [0, 1, 2]
    assert not model._forward_pre_hooks
