"""Batches and metrics as people write them, and the sentence for those that cannot work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import secateur
from secateur import UsageError
from secateur.loop.task import NoLabels, accuracy, classification_loss, require_number
from tests.support.models import blobs, trained_convnet

IMAGES, LABELS = torch.randn(6, 5), torch.arange(6) % 3


class Plain(nn.Linear):
    def __init__(self) -> None:
        super().__init__(5, 3)


class Named(Plain):
    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:  # type: ignore[override]
        logits = super().forward(pixel_values)
        own = {} if labels is None else {"loss": logits.square().mean()}
        return {"logits": logits, **own}


@pytest.mark.parametrize("labels", ["labels", "label", "target", "targets", "y"])
@pytest.mark.parametrize("inputs", ["image", "x", "input"])
def test_a_dict_of_two_may_have_any_common_names(inputs: str, labels: str) -> None:
    model, batch = Plain(), {labels: LABELS, inputs: IMAGES}
    assert classification_loss(model, batch).equal(classification_loss(model, (IMAGES, LABELS)))
    assert accuracy(model, [batch]) == accuracy(model, [(IMAGES, LABELS)])


def test_names_of_the_models_own_come_first() -> None:
    model = Named()
    logits = model(IMAGES)["logits"]
    assert classification_loss(model, {"pixel_values": IMAGES, "labels": LABELS}).equal(logits.square().mean())
    cross_entropy = nn.functional.cross_entropy(logits, LABELS)
    assert classification_loss(model, {"pixel_values": IMAGES, "label": LABELS}).equal(cross_entropy)


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        (
            {"image": IMAGES, "target": LABELS, "id": LABELS},
            "A batch is a dict of image, target, id, and the model takes input; call its entries like those, and the "
            'labels "labels", or write your own loss and metric.',
        ),
        ({"input": IMAGES, "class": LABELS}, "A batch is a dict of input, class, and the model takes input; "),
    ],
)
def test_other_dicts_are_refused_with_their_keys(batch: dict[str, Tensor], sentence: str) -> None:
    for judge in (lambda: classification_loss(Plain(), batch), lambda: accuracy(Plain(), [batch])):
        with pytest.raises(UsageError) as raised:
            judge()
        assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize("batch", [IMAGES, [IMAGES], {"input": IMAGES}], ids=["tensor", "list", "dict"])
def test_batches_without_labels_are_told_from_others(batch: Any) -> None:
    with pytest.raises(NoLabels, match="A training batch holds no labels"):
        classification_loss(Plain(), batch)
    with pytest.raises(UsageError, match="A batch of the evaluation data holds no labels to count by"):
        accuracy(Plain(), [batch])


@pytest.mark.parametrize("value", [0.5, 1, torch.tensor(0.25), np.float32(0.5), np.array(0.5)])
def test_numbers_of_any_kind_are_metrics(value: Any) -> None:
    assert require_number(value) == float(value)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"f1": 0.5}, "a dict of 'f1'; let it return one of these numbers, higher being better"),
        (None, "a NoneType; let it return one number"),
        ((0.5, 0.6), "a tuple; let it return one number"),
        (torch.zeros(2), "a Tensor; let it return one number"),
        (float("nan"), "nan, by which no models compare"),
        (-float("inf"), "-inf, by which no models compare"),
    ],
)
def test_anything_else_is_no_metric(value: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=f"^The metric returns {sentence}"):
        require_number(value)


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (lambda model, batch: 0.5, "The loss returns a float; let it return one number, as a tensor"),
        (lambda model, batch: None, "The loss returns a NoneType"),
        (
            lambda model, batch: model(batch[0]).square(),
            r"The loss returns a tensor of shape \(32, 4\); let it return its mean",
        ),
        (
            lambda model, batch: model(batch[0]).detach().mean(),
            "does not depend on the model's weights.*without detach",
        ),
    ],
)
@pytest.mark.parametrize("distill", [0, 0.5])
def test_a_loss_that_nothing_can_be_learnt_from(loss: Any, sentence: str, distill: float) -> None:
    data = {"train_data": DataLoader(blobs(), 32), "eval_data": DataLoader(blobs(64), 32), "progress": False}
    recipe = secateur.Recipe(distill=distill)
    with pytest.raises(UsageError, match=sentence):
        secateur.prune(trained_convnet(), 0.5, repair=0, finetune=1, loss=loss, recipe=recipe, **data)
