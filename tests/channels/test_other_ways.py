"""Where values decide which layers run: the other ways are taken where they are few, or what they may read stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur
from secateur.channels.select import NothingToCut


class Branches(nn.Module):
    """One of two layers runs, as `ask` says of the input."""

    def __init__(self, ask: Callable[[Tensor], Any], width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ask = ask
        self.stem = nn.Linear(6, width)
        self.usual = nn.Linear(width, width)
        self.other = nn.Linear(width, width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x).relu()
        return self.head((self.usual(h) if self.ask(x) else self.other(h)).relu())


def rows() -> Tensor:
    return torch.rand(4, 6, generator=torch.Generator().manual_seed(0))


def test_both_answers_to_a_yes_or_no_are_followed() -> None:
    model = Branches(lambda x: x.mean() > 0)
    plan = secateur.plan_channels(model, rows(), 0.5)
    secateur.apply(model, plan)
    assert model.other.weight.shape == model.usual.weight.shape == (8, 8)
    assert model(-rows()).shape == (4, 3)
    flipped = secateur.plan_channels(Branches(model.ask), -rows(), 0.5)
    assert flipped.tensors == plan.tensors, "whichever way the example takes"


def test_questions_on_the_other_way_are_followed_as_well() -> None:
    model = Branches(lambda x: bool(x.mean() > 0) or bool(x.min() < -2))
    secateur.apply(model, secateur.plan_channels(model, rows(), 0.5))
    for x in (rows(), -rows(), -3 * rows()):
        assert model(x).shape == (4, 3)


def test_as_many_ways_as_a_check_of_masks_has_are_followed_in_both_modes() -> None:
    """Each question that is answered with no leads to the next, and training, which asks them too, has its own ways."""
    model = Branches(lambda x: bool(x.mean() > 0) or bool(x.max() > 1) or bool(x.min() < -2))
    model.in_training = nn.Linear(5, 5)
    secateur.apply(model, secateur.plan_channels(model, rows(), 0.5))
    assert model.other.in_features == 8


def only_once(x: Tensor) -> bool:
    if x.mean() > 0:
        return True
    raise ValueError("no such data")


UNKNOWN: dict[str, Callable[[Tensor], Any]] = {
    "a number": lambda x: x.mean().item() > 0,
    "which are positive": lambda x: len((x > 0).nonzero()) > 3,
    "which remain": lambda x: x[x > 0].shape[0] > 3,
    "a comparison of all values": lambda x: torch.equal(x, x.abs()),
    "too many questions": lambda x: all(bool(value > 0) for value in x.flatten()),
    "a way that fails": only_once,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_a_layer_on_an_unknown_way_may_read_stays(name: str) -> None:
    model = Branches(UNKNOWN[name])
    with pytest.raises(NothingToCut, match="other, which may read it, did not run here"):
        secateur.plan_channels(model, rows(), 0.5)


def test_a_question_to_weights_has_two_answers_too() -> None:
    model = Branches(lambda x: True)
    model.ask = lambda x: model.stem(x).sum() > -1e9
    plan = secateur.plan_channels(model, rows(), 0.5)
    assert plan.looks_at_weights
    assert secateur.apply(model, plan).other.in_features == 8


def test_only_lengths_that_the_layer_has_stay() -> None:
    """The layer that did not run holds 7 and 3; the width of 16 can go."""
    model = Branches(UNKNOWN["a number"])
    model.other = nn.Linear(7, 3)
    assert secateur.apply(model, secateur.plan_channels(model, rows(), 0.5)).usual.in_features == 8
