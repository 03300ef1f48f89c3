"""Sizes against counting by hand, and the comparison of times on clocks that the test controls."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import secateur
from secateur.bench.size import count_macs, measure_size
from secateur.bench.timing import Timing
from secateur.bench.turns import time_in_turns
from secateur.examples.small_resnet import SmallResNet


def test_sizes_are_counted() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    nn.init.zeros_(model[0].bias)
    size = measure_size(model)
    assert size.parameters == 12 + 3 + 3 + 3
    assert size.nonzeros == 12 + 3
    assert size.file_bytes == 4 * (21 + 3 + 3) + 8


def test_tied_weights_are_counted_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert measure_size(model).parameters == 16


def test_macs_are_multiply_adds() -> None:
    assert count_macs(nn.Linear(10, 20), torch.zeros(3, 10)) == 3 * 10 * 20
    assert count_macs(nn.Conv2d(4, 8, 3, padding=1), torch.zeros(1, 4, 6, 6)) == 8 * 6 * 6 * 4 * 9


def test_the_reference_network_is_residual_and_classifies() -> None:
    model = SmallResNet((8, 16))
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


class FakeClock:
    """Advances only when a fake call says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self, call: Callable[[], object], repeats: int) -> float:
        before = self.now
        for _ in range(repeats):
            call()
        return self.now - before

    def call(self, seconds: float) -> None:
        self.now += seconds


def test_a_ratio_is_measured_exactly_when_nothing_disturbs_it() -> None:
    clock = FakeClock()
    timings = time_in_turns({"a": lambda: clock.call(0.004), "b": lambda: clock.call(0.002)}, clock=clock)
    assert timings["b"].ratio == pytest.approx(0.5)
    assert timings["b"].seconds == pytest.approx(0.002)
    assert timings["b"].settled
    assert timings["b"].rounds == 20
    assert timings["b"].verdict(timings.control) == "faster"


def test_a_disturbance_in_some_rounds_does_not_move_the_ratio() -> None:
    clock = FakeClock()
    count = 0

    def disturbed() -> None:
        nonlocal count
        count += 1
        clock.call(0.002 if count % 3 else 0.010)

    timings = time_in_turns({"a": lambda: clock.call(0.002), "b": disturbed}, clock=clock)
    assert timings["b"].ratio == pytest.approx(1.0)


@pytest.mark.parametrize(("seconds", "untimed"), [(0.002, 1), (0.02, 0)])
def test_short_calls_find_their_data_in_the_cache(seconds: float, untimed: int) -> None:
    """The first call after another one takes five times as long; only long calls are counted with that."""
    clock = FakeClock()
    last = ""

    def call(name: str) -> None:
        nonlocal last
        clock.call(seconds if last == name else 5 * seconds)
        last = name

    calls = {name: lambda name=name: call(name) for name in ("a", "b", "c")}
    timings = time_in_turns(calls, clock=clock, max_seconds=0)
    assert timings["b"].seconds == pytest.approx(seconds if untimed else 5 * seconds)


def test_noise_that_never_settles_is_admitted() -> None:
    clock = FakeClock()
    noise = iter(torch.rand(100_000, generator=torch.Generator().manual_seed(0)).tolist())
    timings = time_in_turns(
        {"a": lambda: clock.call(0.002), "b": lambda: clock.call(next(noise))}, clock=clock, max_seconds=0
    )
    assert not timings["b"].settled


def test_a_model_is_faster_only_below_both_the_null_control_and_one() -> None:
    control = Timing(1, 0.96, 0.95, 0.97, 20)
    assert Timing(1, 0.93, 0.92, 0.94, 20).verdict(control) == "faster"
    assert Timing(1, 0.95, 0.94, 0.96, 20).verdict(control) == "no different"
    assert Timing(1, 0.99, 0.985, 0.995, 20).verdict(control) == "no different"
    assert Timing(1, 1.02, 1.01, 1.03, 20).verdict(control) == "slower"


def test_an_interval_close_to_one_is_a_verdict_however_slowly_it_settles() -> None:
    """What the demo called too noisy: 1.00 [0.98, 1.02] beside a null control of 1.00 [0.98, 1.02]."""
    close = Timing(1, 1.0, 0.977, 1.022, 400)
    assert not close.settled
    assert close.verdict(close) == "no different"
    assert close.in_words(close) == "within the noise"
    assert Timing(1, 1.0, 0.95, 1.05, 400).verdict(close) == "no different"
    assert Timing(1, 1.0, 0.949, 1.04, 400).verdict(close) == "too noisy"
    assert Timing(1, 1.0, 0.96, 1.051, 400).verdict(close) == "too noisy"
    assert Timing(1, 0.96, 0.955, 0.965, 400).verdict(close) == "faster", "however little, beyond the noise it counts"


def test_the_null_control_may_be_a_call_of_its_own() -> None:
    clock = FakeClock()
    calls = {"a": lambda: clock.call(0.002), "b": lambda: clock.call(0.004)}
    assert time_in_turns(calls, clock=clock).control.ratio == pytest.approx(1.0)
    turns = time_in_turns(calls, control=lambda: clock.call(0.003), clock=clock)
    assert list(turns.timings) == ["a", "b"]
    assert turns.control.ratio == pytest.approx(1.5)


def test_latency_comes_with_a_null_control_and_leaves_the_models_alone() -> None:
    models = {"dense": nn.Linear(8, 8).train(), "other": nn.Linear(8, 8).eval()}
    before = copy.deepcopy(models["dense"].state_dict())
    threads = torch.get_num_threads()
    comparison = secateur.compare(models, torch.zeros(1, 8), max_seconds=0.5)
    assert list(comparison.timings) == ["dense", "other"]
    assert comparison.control.rounds >= 20
    assert torch.get_num_threads() == threads
    assert models["dense"].training
    assert not models["other"].training
    assert torch.equal(models["dense"].weight, before["weight"])
