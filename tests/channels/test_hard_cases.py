"""Models that fooled the engine once: each was cut wrongly, changed by planning, or refused without need."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import secateur
from secateur.capture.training_code import does_more_in_training
from secateur.channels.select import NothingToCut
from secateur.surgery.proof import dry_run as rehearsal
from secateur.surgery.proof.verifying import NotProvable, ProofFailed


class TwoLayers(nn.Module):
    """Two linear layers; what happens between and after them differs from case to case."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.a = nn.Linear(8, hidden)
        self.b = nn.Linear(hidden, 6)
        self.hidden = hidden

    def between(self, h: Tensor) -> Tensor:
        return h.relu()

    def after(self, y: Tensor) -> Any:
        return y

    def forward(self, x: Tensor) -> Any:
        return self.after(self.b(self.between(self.a(x))))


def rows(count: int = 4) -> Tensor:
    return torch.randn(count, 8)


@pytest.fixture
def _nothing_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "_CHEAP_PARAMETERS", 0)


class Slotted:
    __slots__ = ("logits",)

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


@pytest.mark.parametrize(
    "wrap",
    [
        lambda y: SimpleNamespace(probs=y.softmax(-1)),
        lambda y: torch.distributions.Categorical(logits=y, validate_args=False),
        Slotted,
        lambda y: torch.complex(y, y),
    ],
)
def test_outputs_keep_their_shape_whatever_they_are_wrapped_in(wrap: Any) -> None:
    class Model(TwoLayers):
        def after(self, y: Tensor) -> Any:
            return wrap(y)

    model = Model()
    plan = secateur.plan_channels(model, rows(), 0.5)
    assert {group.name: (group.before, group.after) for group in plan.groups} == {"a": (16, 8)}
    assert secateur.verify(model, plan).outputs >= 1


def test_a_model_without_tensors_in_its_output_is_refused() -> None:
    class Model(TwoLayers):
        def after(self, y: Tensor) -> Any:
            return iter([y])

    with pytest.raises(secateur.UsageError, match="no tensor can be found"):
        secateur.plan_channels(Model(), rows(), 0.5)


ESCAPES: dict[str, Any] = {
    "np.sqrt": lambda h: h / np.sqrt(h.shape[-1]),
    "int": lambda h: h / int(h.shape[-1]),
    "shift": lambda h: h / (h.shape[-1] >> 1),
    "numel": lambda h: h / h.numel(),
    "len": lambda h: h / len(h[0]),
    "power": lambda h: h * h.shape[-1] ** -0.5,
}


@pytest.mark.parametrize("name", ESCAPES)
def test_a_number_made_of_a_size_keeps_the_size(name: str) -> None:
    class Model(TwoLayers):
        def between(self, h: Tensor) -> Tensor:
            return ESCAPES[name](h)

    with pytest.raises(NothingToCut):
        secateur.plan_channels(Model(), rows(), 0.5)


@pytest.mark.usefixtures("_nothing_is_cheap")
@pytest.mark.parametrize("number", [lambda h: h.shape.numel(), lambda h: math.log(h.shape[-1])])
def test_a_number_whose_origin_is_lost_is_noticed_even_where_nothing_is_proven(number: Any) -> None:
    class Model(TwoLayers):
        def between(self, h: Tensor) -> Tensor:
            return h / float(number(h))

    model = Model()
    plan = secateur.plan_channels(model, rows(), 0.5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ProofFailed, match="another number"):
        secateur.apply(model, plan)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_huge_values_in_the_output_do_not_hide_a_difference() -> None:
    class Model(TwoLayers):
        def between(self, h: Tensor) -> Tensor:
            return h / h.shape.numel()

        def after(self, y: Tensor) -> Tensor:
            return torch.cat([y, torch.full_like(y, torch.finfo(torch.float32).min)], -1)

    model = Model()
    with pytest.raises(ProofFailed, match="differ"):
        secateur.verify(model, secateur.plan_channels(model, rows(), 0.5))


class NoiseInTraining(TwoLayers):
    def between(self, h: Tensor) -> Tensor:
        return h + torch.randn(h.shape[0], self.hidden) if self.training else h


class StatisticsInTraining(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def between(self, h: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(h.mean(0), 0.1)
        return h.relu()


class HeadInTraining(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 3))

    def between(self, h: Tensor) -> Tensor:
        if self.training:
            self.seen = self.head(h)
        return h.relu()


@pytest.mark.parametrize("kind", [NoiseInTraining, StatisticsInTraining, HeadInTraining])
@pytest.mark.parametrize("examples", [1, 4])
def test_what_only_training_uses_fits_after_the_cut(kind: type[TwoLayers], examples: int) -> None:
    model = kind()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    plan = secateur.plan_channels(model, rows(examples), 0.5)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not hasattr(model, "seen")
    secateur.apply(model, plan)
    assert model.a.out_features == 8
    model.train()(rows()).sum().backward()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_packed_sequences(kind: type[nn.RNNBase]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.rnn, self.out = nn.Linear(8, 12), kind(12, 16, batch_first=True), nn.Linear(16, 4)
            self.head = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            packed = pack_padded_sequence(self.embed(x), torch.tensor([5, 3]), batch_first=True)
            unpacked, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
            return self.head(F.relu(self.out(unpacked)))

    model = Model()
    plan = secateur.plan_channels(model, torch.randn(2, 5, 8), 0.5)
    secateur.verify(model, plan)


class Momentum(TwoLayers):
    """Moves a copy of its weights along, as momentum contrast does, by assigning data."""

    def between(self, h: Tensor) -> Tensor:
        self.a.weight.data = self.a.weight.data * 0.9
        return h.relu()


class Remembering(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Tensor] = {}
        self.history: list[Tensor] = []

    def between(self, h: Tensor) -> Tensor:
        self.history.append(h)
        return h.relu() + self.cache.setdefault(len(self.history), torch.zeros(self.hidden))


@pytest.mark.parametrize("kind", [Momentum, Remembering])
def test_planning_leaves_nothing_behind(kind: type[TwoLayers]) -> None:
    model = kind()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    secateur.inspect(model, rows())
    secateur.plan_channels(model, rows(), 0.5)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not getattr(model, "cache", None)
    assert not getattr(model, "history", None)


def test_hooks_that_the_pass_installs_are_gone_again() -> None:
    class Model(TwoLayers):
        def forward(self, x: Tensor) -> Any:
            if not hasattr(self, "watched"):
                self.watched = self.a.register_forward_hook(lambda *_: None)
            return super().forward(x)

    model = Model()
    secateur.plan_channels(model, rows(), 0.5)
    assert not model.a._forward_hooks


class RandomAlways(TwoLayers):
    def between(self, h: Tensor) -> Tensor:
        return h + torch.randn_like(h)


class Watchful(TwoLayers):
    def between(self, h: Tensor) -> Tensor:
        assert torch.isfinite(h).all()
        return h.relu()


@pytest.mark.parametrize("kind", [RandomAlways, Watchful])
def test_what_cannot_be_proven_is_rehearsed(kind: type[TwoLayers]) -> None:
    model = kind()
    plan = secateur.plan_channels(model, rows(), 0.5)
    with pytest.raises(NotProvable):
        secateur.verify(model, plan)
    assert secateur.apply(model, plan).a.out_features == 8
    model(rows())


def test_complex_weights_are_ranked_by_magnitude() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 16, dtype=torch.cfloat))
            self.out = nn.Parameter(torch.randn(16, 4, dtype=torch.cfloat))

        def forward(self, x: Tensor) -> Tensor:
            return ((x.to(torch.cfloat) @ self.weight) @ self.out).real

    model = Model()
    norms = model.weight.detach().abs().sum(0)
    plan = secateur.plan_channels(model, rows(), 0.5)
    assert set(plan.tensors["weight"].kept[1].tolist()) == set(norms.topk(8).indices.tolist())


def test_arguments_of_the_wrong_kind_are_answered_in_words() -> None:
    model = TwoLayers()
    plan = secateur.plan_channels(model, rows(), 0.5)
    other = torch.optim.SGD(TwoLayers().parameters(), 0.1)
    wrong: list[tuple[str, Any]] = [
        ("pass what plan_weights or plan_channels returned", lambda: secateur.apply(model, "plan.json")),  # type: ignore[arg-type]
        ("pass what plan_channels returned", lambda: secateur.verify(model, None)),  # type: ignore[arg-type]
        ("give a dict", lambda: secateur.plan_channels(model, rows(), 0.5, per_layer=["a"])),  # type: ignore[arg-type]
        ("give a list of inputs", lambda: secateur.plan_channels(model, rows(), 0.5, data=rows())),
        ("trains none", lambda: secateur.apply(model, plan, optimizer=other)),
        ("LBFGS", lambda: secateur.apply(model, plan, optimizer=torch.optim.LBFGS(model.parameters()))),
        ("torch optimizer", lambda: secateur.apply(model, plan, optimizer="adam")),  # type: ignore[arg-type]
    ]
    for words, call in wrong:
        with pytest.raises(secateur.UsageError, match=words):
            call()
    assert model.a.out_features == 16


class OnlyPassesTheFlagOn(TwoLayers):
    checkpointing = False
    p = 0.1

    def between(self, h: Tensor) -> Tensor:
        if self.checkpointing and self.training:
            print("this never runs")
        if getattr(self, "checkpointing", False) and self.training:
            print("nor does this")
        return F.dropout(h, 0.0 if not self.training else self.p, self.training)


class CountsBatches(TwoLayers):
    """As a batch norm does, and its copies in other libraries."""

    momentum: float | None = None
    num_batches_tracked = torch.zeros(())

    def between(self, h: Tensor) -> Tensor:
        momentum = 0.1
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        return h * momentum


class CountsAndCalls(CountsBatches):
    def between(self, h: Tensor) -> Tensor:
        if self.training:
            self.num_batches_tracked.add_(1)
            h = F.relu(h)
        return h


class SwitchedOn(OnlyPassesTheFlagOn):
    checkpointing = True


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (OnlyPassesTheFlagOn, False),
        (CountsBatches, False),
        (CountsAndCalls, True),
        (SwitchedOn, True),
        (NoiseInTraining, True),
    ],
)
def test_code_that_does_more_in_training_is_recognised(kind: type[TwoLayers], more: bool) -> None:
    assert does_more_in_training(kind()) == more


def test_parameters_that_share_their_memory_only_are_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 4))
    model[2].weight = nn.Parameter(model[0].weight.data)
    with pytest.raises(secateur.UsageError, match=r"0.weight and 2.weight share their memory"):
        secateur.plan_channels(model, rows(), 0.5)
