"""What only the loss of a model needs is told from what the model needs, by what happens without it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertForPreTraining

from secateur.base.inputs import found_in_batch, found_in_batches
from secateur.base.loss_arguments import without_loss_arguments

X, MASK, LABELS = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3), torch.tensor([0, 2])


class Scored(NamedTuple):
    loss: Tensor | None
    scores: Tensor


class Classifier(nn.Module):
    """A loss with labels, another with weights for it, and a number that has nothing to do with either."""

    def __init__(self, form: str = "dict") -> None:
        super().__init__()
        self.form = form

    def forward(
        self, x: Tensor, mask: Tensor | None = None, labels: Tensor | None = None, weights: Tensor | None = None
    ) -> Any:
        scores = x if mask is None else x * mask
        loss = None if labels is None else F.cross_entropy(scores, labels, weights)
        if self.form == "dict":
            return {"loss": loss, "scores": scores, "largest": scores.max()}
        if self.form == "named":
            return Scored(loss, scores)
        return (scores,) if loss is None else (loss, scores)


class LabelsCount(nn.Module):
    """Other scores where it gets labels, such as those of a decoder that is fed with them."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        return (x, x.sum()) if labels is not None else (2 * x,)


def left(model: nn.Module, *args: Any, **kwargs: Any) -> tuple[int, list[str]]:
    with torch.no_grad():
        args, kwargs = without_loss_arguments(model.eval(), args, kwargs)
    return len(args), list(kwargs)


def test_labels_go_and_masks_of_ones_stay_whatever_holds_the_outputs() -> None:
    for form in ("dict", "named", "tuple"):
        assert left(Classifier(form), x=X, mask=MASK, labels=LABELS) == (0, ["x", "mask"])
        assert left(Classifier(form), X, MASK, LABELS) == (2, [])
        assert left(Classifier(form), X, None, LABELS, torch.tensor([1.0, 2, 3])) == (2, [])
        assert left(Classifier(form), X, MASK) == (2, [])


def test_the_weights_of_a_loss_go_with_it() -> None:
    assert left(Classifier(), x=X, mask=MASK, labels=LABELS, weights=torch.tensor([1.0, 2, 3])) == (0, ["x", "mask"])


def test_labels_that_change_another_output_stay() -> None:
    assert left(LabelsCount(), x=X, labels=LABELS) == (0, ["x", "labels"])


def test_two_labels_that_make_a_loss_together_go_together() -> None:
    sizes = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "max_position_embeddings": 8}
    model = BertForPreTraining(BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2))
    tokens = torch.randint(20, (2, 8))
    given = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}
    assert left(model, **given, next_sentence_label=LABELS % 2) == (0, ["input_ids", "attention_mask"])


def test_example_inputs_from_a_batch_are_those_of_the_deployed_model() -> None:
    batch = {"x": X, "mask": MASK, "labels": LABELS}
    found = found_in_batch(Classifier(), lambda model, batch: model(**batch)["loss"], batch)
    assert isinstance(found, dict)
    assert list(found) == ["x", "mask"]
    (whole,) = found_in_batches(Classifier(), lambda model, batch: model(**batch)["loss"], [batch], 1)
    assert list(whole) == ["x", "mask"]
    assert whole["x"] is X


def test_random_numbers_are_left_alone() -> None:
    class Noisy(Classifier):
        def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
            return super().forward(x + torch.randn_like(x), *args, **kwargs)

    before = torch.get_rng_state()
    assert left(Noisy(), x=X, labels=LABELS) == (0, ["x"])
    assert torch.equal(torch.get_rng_state(), before)
