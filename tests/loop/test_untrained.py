"""Random weights are known by what training never leaves as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import secateur
from secateur.examples import MobileNetV2, SmallResNet
from secateur.loop.untrained import looks_untrained
from tests.support.models import ConvNet, blobs, trained_convnet


class Encoder(nn.Module):
    """As libraries of transformers begin: normal weights, biases of zero, norms of one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 16)
        self.query = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 4, bias=False)
        for layer in (self.query, self.head):
            nn.init.normal_(layer.weight, std=0.02)
        nn.init.zeros_(self.query.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.query(self.embedding(x)))).mean(1)  # type: ignore[no-any-return]


def convolutions() -> nn.Module:
    """As torchvision begins: convolutions without biases, kept by batch norms."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8, affine=False), nn.Flatten())
    nn.init.kaiming_normal_(model[0].weight, mode="fan_out")  # type: ignore[arg-type]
    return model


FRESH: list[Callable[[], nn.Module]] = [ConvNet, SmallResNet, MobileNetV2, Encoder, convolutions]


@pytest.mark.parametrize("build", FRESH)
def test_a_model_as_its_constructor_leaves_it(build: Callable[[], nn.Module]) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        assert looks_untrained(build())
        assert looks_untrained(torch.compile(build()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("build", "inputs"), [(ConvNet, torch.randn(8, 4, 4, 4)), (Encoder, torch.randint(10, (8, 5)))]
)
def test_a_single_step_of_training_shows(build: Callable[[], nn.Module], inputs: torch.Tensor) -> None:
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    nn.functional.cross_entropy(model(inputs), torch.arange(8) % 4).backward()
    optimizer.step()
    assert not looks_untrained(model)


def test_trained_layers_speak_for_a_model_with_a_new_head() -> None:
    model = trained_convnet()
    model.output = nn.Linear(32, 4)
    assert not looks_untrained(model)


def test_layers_that_tell_nothing_are_not_accused() -> None:
    model = nn.Linear(16, 16, bias=False)
    nn.init.orthogonal_(model.weight)
    assert not looks_untrained(model)
    assert not looks_untrained(nn.Linear(2, 2, bias=False))
    assert not looks_untrained(nn.ReLU())


def test_pruning_random_weights_warns_and_is_never_called_recovered() -> None:
    data = {"train_data": DataLoader(blobs(), 32), "eval_data": DataLoader(blobs(64, seed=1), 32)}
    with pytest.warns(secateur.SecateurWarning, match=r"looks untrained: .* Load trained weights .* train=…"):
        result = secateur.prune(ConvNet(), 0.5, repair=0, finetune=1, tolerance=1, progress=False, **data)
    assert result.untrained
    assert not result.recovered
    assert result.verdict.startswith("NOT TRAINED")
    assert result.to_json()["recovered"] is False
    told = secateur.prune(trained_convnet(), 0.5, repair=0, finetune=0, tolerance=1, progress=False, **data)
    assert not told.untrained
    assert told.verdict.startswith("Recovered")
