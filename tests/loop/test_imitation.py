"""Fine-tuning that learns from the dense model's answers: beside labels by default, and alone where there are none."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import secateur
from secateur.loop.imitation import Call, imitation_loss
from tests.support.channel_runs import QUICK, assert_same
from tests.support.models import blobs, trained_convnet

IMAGES, LABELS = blobs().tensors


def data(train: Any = None, **options: Any) -> dict[str, Any]:
    train = DataLoader(blobs(), 32, shuffle=True) if train is None else train
    return {"train_data": train, "eval_data": DataLoader(blobs(128, seed=1), 64), "progress": False, **options}


class Dicts(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"x": IMAGES[i]}


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = trained_convnet()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.net(x)}


UNLABELLED = {
    "tensors": lambda: (trained_convnet(), DataLoader(IMAGES, 32, shuffle=True)),
    "lists of one": lambda: (trained_convnet(), DataLoader(TensorDataset(IMAGES), 32, shuffle=True)),
    "dicts": lambda: (Named(), DataLoader(Dicts(), 32, shuffle=True)),
}


@pytest.mark.parametrize("kind", UNLABELLED)
@pytest.mark.parametrize("cut", [{"amount": 0.95}, {"channels": 0.9}], ids=["zeros", "channels"])
def test_inputs_without_labels_are_enough_to_fine_tune(kind: str, cut: dict[str, Any]) -> None:
    model, inputs = UNLABELLED[kind]()
    result = secateur.prune(model, repair=0, finetune=3, recipe=QUICK, **cut, **data(inputs))
    assert [record.phase for record in result.records] == ["before", "cut", *["fine-tune"] * 3]
    assert result.after > result.right_after
    assert "no labels, so fine-tuning learnt from the dense model's answers" in str(result)


def test_without_labels_it_is_what_distillation_alone_is() -> None:
    recipe = secateur.Recipe(lr=QUICK.lr, distill=1.0)
    ends = [
        secateur.prune(trained_convnet(), 0.9, finetune=1, recipe=recipe, **data(DataLoader(each, 32)))
        for each in (IMAGES, blobs())
    ]
    assert_same(*ends)


def test_classification_distills_by_default_and_a_loss_of_ones_own_does_not() -> None:
    def run(**options: Any) -> secateur.Result:
        return secateur.prune(trained_convnet(), 0.9, finetune=1, **data(), **options)

    def own_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    assert_same(run(), run(recipe=secateur.Recipe(distill=0.5)))
    plain = run(recipe=secateur.Recipe(distill=0))
    assert_same(run(loss=own_loss), plain)
    with pytest.raises(AssertionError):
        assert_same(run(), plain)


def test_outputs_that_are_no_classes_are_imitated_as_numbers() -> None:
    """The metric is the user's, so nothing says that the outputs are classes."""
    model = trained_convnet()
    dense = copy.deepcopy(model).eval()

    def agreement(pruned: nn.Module, batches: Iterable[Any]) -> float:
        with torch.no_grad():
            return -sum(float(F.mse_loss(pruned(x), dense(x))) for x, _ in batches)

    images = DataLoader(IMAGES, 32, shuffle=True)
    result = secateur.prune(model, 0.9, repair=0, finetune=3, recipe=QUICK, metric=agreement, **data(images))
    assert result.after > result.right_after


def test_the_losses_are_those_of_the_definitions() -> None:
    torch.manual_seed(0)
    teacher, student, x = nn.Linear(5, 3), nn.Linear(5, 3), torch.randn(7, 5)
    given, wanted = student(x), teacher(x)
    calls = [Call((x,), {}, given)] * 2
    soft = F.softmax(wanted / 3, 1)
    divergence = (soft * (soft.log() - F.log_softmax(given / 3, 1))).sum(1).mean() * 9
    torch.testing.assert_close(imitation_loss(teacher, calls, classes=True, temperature=3), 2 * divergence)
    distance = (given - wanted).square().mean() / wanted.square().mean()
    torch.testing.assert_close(imitation_loss(teacher, calls, classes=False, temperature=3), 2 * distance)


NEEDS_LABELS = [
    ({"train": 1}, "A training batch holds no labels"),
    ({"score": "taylor"}, "A training batch holds no labels"),
    ({"recipe": secateur.Recipe(distill=0)}, "A training batch holds no labels"),
    ({"eval_data": DataLoader(IMAGES, 32)}, "A batch of the evaluation data holds no labels to count by"),
]


@pytest.mark.parametrize(("options", "sentence"), NEEDS_LABELS, ids=[str(options)[:20] for options, _ in NEEDS_LABELS])
def test_what_needs_labels_says_so(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(secateur.UsageError, match=sentence):
        secateur.prune(
            trained_convnet(), 0.9, repair=0, finetune=1, **{**data(DataLoader(IMAGES, 32)), "recipe": QUICK, **options}
        )


def test_a_run_that_cut_without_distillation_goes_on_without_it(tmp_path: Path) -> None:
    interrupted = iter([False, False, True, *[False] * 9])

    def accuracy(model: nn.Module, batches: Iterable[Any]) -> float:
        if next(interrupted):
            raise KeyboardInterrupt
        return secateur.loop.task.accuracy(model, batches)

    def run(recipe: secateur.Recipe) -> secateur.Result:
        options = data(run_dir=tmp_path, metric=accuracy)
        return secateur.prune(trained_convnet(), 0.9, repair=0, finetune=1, recipe=recipe, **options)

    with pytest.raises(KeyboardInterrupt):
        run(secateur.Recipe(distill=0))
    with pytest.raises(secateur.UsageError, match=r"cut the model without distillation.*with distill=0"):
        run(secateur.Recipe(distill=0.5))
    assert run(secateur.Recipe()).records[-1].phase == "fine-tune"


class Spans(nn.Module):
    """Computes a loss of its own from entries that are called otherwise, and gives no logits."""

    def __init__(self) -> None:
        super().__init__()
        self.net = trained_convnet()

    def forward(self, x: Tensor, start: Tensor | None = None) -> dict[str, Tensor]:
        begins = self.net(x)
        return {"begins": begins} if start is None else {"loss": F.cross_entropy(begins, start), "begins": begins}


def test_a_model_that_is_no_classifier_learns_from_its_own_loss_alone() -> None:
    class Batches(Dicts):
        def __getitem__(self, i: int) -> dict[str, Tensor]:
            return {"x": IMAGES[i], "start": LABELS[i]}

    def hits(model: nn.Module, batches: Iterable[Any]) -> float:
        with torch.no_grad():
            return sum(int((model(x)["begins"].argmax(1) == y).sum()) for x, y in batches) / 128

    options = data(DataLoader(Batches(), 32), metric=hits)
    result = secateur.prune(Spans(), 0.95, finetune=1, recipe=QUICK, **options)
    assert result.after > 0.9


@pytest.mark.parametrize(("finetune", "kept"), [(0, False), (1, True)])
def test_the_dense_model_is_kept_only_to_learn_from(finetune: float, kept: bool, tmp_path: Path) -> None:
    seen = []

    def accuracy(model: nn.Module, batches: Iterable[Any]) -> float:
        seen.append((tmp_path / "dense.safetensors").exists())
        return secateur.loop.task.accuracy(model, batches)

    recipe = secateur.Recipe(distill=0.5)
    secateur.prune(trained_convnet(), 0.9, finetune=finetune, recipe=recipe, **data(run_dir=tmp_path, metric=accuracy))
    assert any(seen) == kept
