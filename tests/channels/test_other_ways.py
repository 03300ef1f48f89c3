"""Where values decide which layers run: the other ways are taken where they are few, or what they may read stays."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
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


def looked_up(x: Tensor) -> bool:
    """Where the mean is positive, so is the greatest value, and the table has no such entry."""
    return bool(x.mean() > 0) or bool(torch.ones(3)[(-1000 * x.max()).long()] > 0)


UNKNOWN: dict[str, Callable[[Tensor], Any]] = {
    "a number": lambda x: x.mean().item() > 0,
    "which are positive": lambda x: len((x > 0).nonzero()) > 3,
    "which remain": lambda x: x[x > 0].shape[0] > 3,
    "a comparison of all values": lambda x: torch.equal(x, x.abs()),
    "too many questions": lambda x: all(bool(value > 0) for value in x.flatten()),
    "a way that fails": looked_up,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_a_layer_on_an_unknown_way_may_read_stays(name: str) -> None:
    model = Branches(UNKNOWN[name])
    with pytest.raises(NothingToCut, match="other, which may read it, did not run here"):
        secateur.plan_channels(model, rows(), 0.5)


def only_once(x: Tensor) -> bool:
    if x.mean() > 0:
        return True
    raise ValueError("no such data")


def test_a_way_that_the_code_refuses_to_go_reads_nothing() -> None:
    model = Branches(only_once)
    secateur.apply(model, secateur.plan_channels(model, rows(), 0.5))
    assert model.usual.in_features == 8
    assert model.other.in_features == 16, "no pass ever comes there"


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


class Observer(nn.Module):
    """Keeps the range of what it sees, and asks its own state whether that is the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Buffer(torch.zeros(1))
        self.high = nn.Buffer(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        low, high = x.detach().min(), x.detach().max()
        if low.isnan() or high.isnan():
            raise ValueError("not a number")
        if self.low == 0 and self.high == 0:
            self.low, self.high = self.low + low, self.high + high
        else:
            self.low, self.high = torch.minimum(self.low, low), torch.maximum(self.high, high)
        return x


class Returns(nn.Module):
    """Its answer decides what it returns."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > -1e9 else (x, None)


class Remembers(nn.Module):
    """Keeps its answer as a plain attribute, which other code may ask for."""

    def forward(self, x: Tensor) -> Tensor:
        self.positive = bool(x.sum() > 0)
        return x


class Tells(nn.Module):
    """Leaves its answer in an object that other code may share."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = SimpleNamespace(answers=[])

    def forward(self, x: Tensor) -> Tensor:
        self.shared.answers += [1] if x.sum() > 0 else [1, 1]
        return x


class IsGiven(nn.Module):
    """Leaves its answer in a list that it is given."""

    def forward(self, x: Tensor, answers: list[bool]) -> Tensor:
        answers.append(bool(x.sum() > 0))
        return x


class Giving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = IsGiven()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, [])


class Observed(Branches):
    """Asks four questions before and behind each of its layers; `other` is never read."""

    def __init__(self, make: Callable[[], nn.Module] = Observer) -> None:
        super().__init__(lambda x: True)
        self.before, self.between, self.behind = make(), make(), make()

    def forward(self, x: Tensor) -> Tensor:
        h = self.between(self.stem(self.before(x)).relu())
        return self.head(self.behind(self.usual(h) if self.ask(x) else self.other(h)).relu())


def test_questions_that_a_module_asks_for_itself_are_settled_in_it() -> None:
    model = Observed()
    plan = secateur.plan_channels(model, rows(), 0.5)
    assert model.between.low == model.between.high == 0, "planning leaves its state alone"
    assert "forward" not in vars(model.between)
    assert secateur.apply(model, plan).usual.weight.shape == (8, 8)
    assert model(rows()).shape == (4, 3)


@pytest.mark.parametrize("kind", [Returns, Remembers, Tells, Giving])
def test_answers_that_leave_their_module_are_not_settled(kind: type[nn.Module]) -> None:
    with pytest.raises(NothingToCut, match="other, which may read it, did not run here"):
        secateur.plan_channels(Observed(kind), rows(), 0.5)


class Doubtful(nn.Module):
    """Two layers, of which its input chooses one: what they give is used alike."""

    def __init__(self) -> None:
        super().__init__()
        self.usual, self.other = nn.Linear(16, 12), nn.Linear(16, 12)

    def forward(self, h: Tensor) -> Tensor:
        return self.usual(h) if h.sum() > 0 else self.other(h)


def test_what_comes_of_the_ways_of_a_module_is_cut_alike() -> None:
    """Twelve questions in all, of which the passes of the whole model could follow eight."""
    torch.manual_seed(0)
    parts = [part for _ in range(6) for part in (Doubtful(), nn.ReLU(), nn.Linear(12, 16))]
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), *parts, nn.Linear(16, 3))
    plan = secateur.plan_channels(model, rows(), 0.5)
    for i in range(2, 20, 3):
        kept = plan.tensors[f"{i}.usual.weight"].kept
        assert len(kept[0]) == 6
        assert len(kept[1]) == 8
        for axis in (0, 1):
            assert kept[axis].tolist() == plan.tensors[f"{i}.other.weight"].kept[axis].tolist()
    secateur.apply(model, plan)
    assert model(rows()).shape == model(-rows()).shape == (4, 3)


class Rounded(nn.Module):
    """A layer with a copy of its weights and their scales, which nothing reads until it is switched over."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.bias = nn.Parameter(torch.randn(outputs))
        self.rounded = nn.Buffer(self.weight.detach().round())
        self.scales = nn.Buffer(self.weight.detach().abs().amax(1))
        self.counts = nn.Buffer(torch.arange(7.0))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


def test_an_unread_copy_of_a_parameter_is_cut_with_it() -> None:
    model = nn.Sequential(Rounded(6, 16), nn.ReLU(), Rounded(16, 16), nn.ReLU(), Rounded(16, 3))
    secateur.apply(model, secateur.plan_channels(model, rows(), 0.5))
    for layer in model[::2]:
        assert torch.equal(layer.rounded, layer.weight.detach().round())
        assert layer.scales.shape == layer.bias.shape
        assert layer.counts.shape == (7,)
    assert model[2].rounded.shape == (8, 8)


def test_an_unread_buffer_that_could_follow_either_of_two_stays() -> None:
    class Twofold(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Parameter(torch.randn(16, 16)), nn.Parameter(torch.randn(16, 16))
            self.spare = nn.Buffer(torch.randn(16, 16))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.up).relu() @ self.down

    model = nn.Sequential(nn.Linear(6, 16), Twofold(), nn.Linear(16, 3))
    secateur.apply(model, secateur.plan_channels(model, rows(), 0.5))
    assert model[1].up.shape == (8, 8)
    assert model[1].spare.shape == (16, 16)
