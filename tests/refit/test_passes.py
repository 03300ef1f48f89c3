"""A repair on models whose passes do more than compute: the result is right, and nothing else has changed."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.utils._python_dispatch as dispatch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import secateur
from tests.support.process_state import process_state


def flags() -> dict[str, Any]:
    return {name: value for name, value in vars(dispatch).items() if name.startswith("_is_in_")}


def surroundings() -> dict[str, Any]:
    return {**process_state(), "flags": flags(), "running": threading.active_count()}


@contextmanager
def unchanged_surroundings() -> Iterator[None]:
    before = surroundings()
    try:
        yield
    finally:
        after = surroundings()
        assert [name for name in before if after[name] != before[name]] == []


class Model(nn.Module):
    """Two layers, and between them whatever a test is about."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.train()

    def between(self, x: Tensor) -> Tensor:
        return x.relu()

    def forward(self, x: Tensor) -> Tensor:
        self.later = bool(x[:, 0].sum() > 0)
        return self.third(torch.tanh(self.second(self.between(self.first(x)))))


def examples() -> Tensor:
    """They have something in common, so that one can stand in for another. The later half goes another way."""
    noise = torch.randn(128, 7, generator=torch.Generator().manual_seed(0))
    x = noise[:, :6] + 2 * noise[:, 6:]
    x[:, 0] = x[:, 0].abs()
    x[:64, 0] *= -1
    return x


def repaired(model: nn.Module, better: bool = True) -> secateur.Repaired:
    """It is on the way, without anything else being changed."""
    masks = secateur.plan_weights(model, 0.6)
    modes = [module.training for module in model.modules()]
    with unchanged_surroundings():
        report = secateur.repair(model, masks, examples(), progress=False)
    assert report.after < report.before or not better
    assert [module.training for module in model.modules()] == modes
    for name, layer in masks.layers.items():
        assert not model.get_parameter(name)[layer.pruned()].any()
    return report


def kept(report: secateur.Repaired) -> dict[str, str]:
    return {layer.name: layer.kept for layer in report.layers}


ALL_FITTED = {"first.weight": "", "second.weight": "", "third.weight": ""}


def test_the_plain_model() -> None:
    assert kept(repaired(Model())) == ALL_FITTED


def test_the_same_result_every_time() -> None:
    model = Model()
    models = [copy.deepcopy(model) for _ in range(2)]
    for each in models:
        repaired(each)
    assert all(torch.equal(a, b) for a, b in zip(*(each.parameters() for each in models), strict=True))


def test_batches_that_take_other_ways() -> None:
    class Branching(Model):
        def __init__(self) -> None:
            super().__init__()
            self.extra = nn.Linear(16, 16)

        def between(self, x: Tensor) -> Tensor:
            return self.extra(x) if self.later else x.relu()

    report = kept(repaired(Branching(), better=False))  # what the fit reaches is not what is held back
    assert report["extra.weight"] == "not all batches reach it"
    assert {name: report[name] for name in ALL_FITTED} == ALL_FITTED


def test_a_loop_whose_length_the_data_decides() -> None:
    class Looping(Model):
        def between(self, x: Tensor) -> Tensor:
            for _ in range(2 + self.later):
                x = torch.tanh(self.second(x))
            return x

    assert kept(repaired(Looping())) == ALL_FITTED


def test_a_model_that_cannot_do_with_one_example() -> None:
    class Squeezing(Model):
        def between(self, x: Tensor) -> Tensor:
            return x.squeeze()[:, :].relu()

    assert kept(repaired(Squeezing())) == ALL_FITTED


def test_an_error_in_one_pass_is_one_sentence_and_changes_nothing() -> None:
    class Failing(Model):
        def between(self, x: Tensor) -> Tensor:
            if x.shape[0] > 2 and self.later:
                raise RuntimeError("no such luck\nwith details")
            return x.relu()

    class Always(Model):
        def between(self, x: Tensor) -> Tensor:
            if x.shape[0] > 2:
                raise RuntimeError("no such luck\nwith details")
            return x.relu()

    for model in (Failing(), Always()):
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(
            secateur.UsageError, match=r"^The model failed on a calibration batch \(RuntimeError: no such"
        ):
            repaired(model)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_model_with_threads_of_its_own() -> None:
    """What they compute is not seen, and their weights stay."""

    class Threaded(Model):
        def __init__(self) -> None:
            super().__init__()
            self.extra = nn.Linear(16, 16)

        def between(self, x: Tensor) -> Tensor:
            found: list[Tensor] = []
            helper = threading.Thread(target=lambda: found.append(torch.relu(self.extra(x))))
            helper.start()
            helper.join()
            return found[0]

    assert kept(repaired(Threaded())) == {**ALL_FITTED, "extra.weight": "no product with it was seen"}


def test_hooks() -> None:
    model, seen = Model(), list[str]()
    model.second.register_forward_pre_hook(lambda module, args: seen.append("before"))
    model.second.register_forward_hook(lambda module, args, output: output * 0.5)
    assert kept(repaired(model)) == ALL_FITTED
    assert seen
    assert len(model.second._forward_hooks) == len(model.second._forward_pre_hooks) == 1


def test_state_that_a_pass_leaves_in_the_model() -> None:
    class Stateful(Model):
        def __init__(self) -> None:
            super().__init__()
            self.last: Tensor | None = None
            self.register_buffer("passes", torch.zeros(()))

        def between(self, x: Tensor) -> Tensor:
            assert self.last is None
            self.last = x
            self.passes += 1
            return x.relu()

    model = Stateful()
    assert kept(repaired(model)) == ALL_FITTED
    assert model.last is None
    assert model.passes == 0


def test_a_compiled_model_is_unwrapped() -> None:
    model = Model()
    compiled: Any = torch.compile(model, backend="eager")
    masks = secateur.plan_weights(model, 0.6)
    with unchanged_surroundings():
        report = secateur.repair(compiled, masks, examples(), progress=False)
    assert kept(report) == ALL_FITTED
    inner = Model()
    inner.between = torch.compile(inner.between, backend="eager")  # type: ignore[method-assign]
    assert kept(repaired(inner)) == ALL_FITTED


def test_autocast_in_the_model_and_around_the_call() -> None:
    class Lower(Model):
        def between(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                x = self.second(x.relu())
                assert x.dtype == torch.bfloat16
            return x.float()

    assert kept(repaired(Lower())) == ALL_FITTED
    with torch.autocast("cpu", torch.bfloat16):
        around = repaired(Model())
    assert kept(around) == ALL_FITTED


def test_convolutions_under_autocast_are_fitted_in_the_precision_of_their_weights() -> None:
    class Lower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.turned = nn.Conv1d(1, 8, 3), nn.ConvTranspose1d(8, 4, 3)
            self.head = nn.Linear(24, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                x = self.turned(self.conv(x[:, None]))
                assert x.dtype == torch.bfloat16
            return self.head(x.float().flatten(1))

    model = Lower()
    assert kept(repaired(model)) == {"conv.weight": "", "turned.weight": "", "head.weight": ""}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


class Halved(TorchDispatchMode):
    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return op(*args, **(kwargs or {}))


class Noted(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def test_modes_in_the_model_and_around_the_call() -> None:
    class Moded(Model):
        def between(self, x: Tensor) -> Tensor:
            with Noted(), Halved():
                return self.second(x.relu())

    model = Moded()
    with Halved(), Noted():
        assert kept(repaired(model)) == ALL_FITTED


def test_a_model_that_draws_random_numbers() -> None:
    class Noisy(Model):
        def between(self, x: Tensor) -> Tensor:
            return x.relu() + 0.01 * torch.randn_like(x)

    assert kept(repaired(Noisy())) == ALL_FITTED


def test_another_thread_can_repair() -> None:
    model, found = Model(), list[secateur.Repaired]()
    thread = threading.Thread(target=lambda: found.append(repaired(model)))
    thread.start()
    thread.join()
    assert kept(found[0]) == ALL_FITTED
