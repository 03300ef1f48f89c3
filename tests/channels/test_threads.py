"""Planning beside other threads: plans are those of a quiet process, and the others do not notice."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from logging.handlers import BufferingHandler
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

import secateur
from secateur.capture.program import quiet
from secateur.plans.plan import Plan
from tests.architectures import ARCHITECTURES
from tests.support.process_state import process_state

PLANNED = ["resnet_basic", "transformer_encoder", "gated_residual"]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return 2 * gradients[0]


class Served(nn.Module):
    """Touches all that a capture looks at: wrappers, lengths, custom functions, attention's fast path."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Sequential(nn.Linear(18, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        out = F.pad(self.attention(x), (1, 1))
        return Doubled.apply(self.head(1 - out)) / len(out)  # type: ignore[no-any-return, no-untyped-call]


def contents(plan: Plan) -> tuple[Any, ...]:
    kept = {name: {axis: indices.tolist() for axis, indices in cut.kept.items()} for name, cut in plan.tensors.items()}
    return str(plan), kept, dict(plan.attributes), plan.constants, plan.output_shapes


def planner(name: str) -> Callable[[], None]:
    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    model, inputs = architecture.build().eval(), architecture.inputs()
    expected = contents(secateur.plan_channels(model, inputs, 0.5))

    def step() -> None:
        plan = secateur.plan_channels(model, inputs, 0.5)
        assert contents(plan) == expected
        assert secateur.verify(model, plan).moved

    return step


def server() -> Callable[[], None]:
    torch.manual_seed(1)
    model, inputs = Served().eval(), torch.randn(2, 5, 16)
    with torch.inference_mode():
        expected = model(inputs)

    def step() -> None:
        with torch.inference_mode():
            out = model(inputs)
        assert torch.equal(out, expected)
        assert torch.zeros(1).dtype == torch.float32
        assert torch.is_grad_enabled()

    return step


def compiled_server() -> Callable[[], None]:
    torch.manual_seed(1)
    inputs = torch.randn(2, 5, 16)
    model = torch.compile(nn.Sequential(nn.Linear(16, 8), nn.Hardtanh(), nn.Linear(8, 3)).eval(), backend="eager")
    with torch.no_grad():
        expected = model(inputs)
    graphs = counters["stats"]["unique_graphs"]

    def step() -> None:
        with torch.no_grad():
            assert torch.equal(model(inputs), expected)
        assert counters["stats"]["unique_graphs"] == graphs, "the server had to compile again"

    return step


def drawer() -> Callable[[], None]:
    """The only one that draws from torch's generator: its numbers come in their order, none twice and none left out."""
    alone = torch.Generator().manual_seed(7)
    torch.manual_seed(7)

    def step() -> None:
        assert torch.equal(torch.randn(3), torch.randn(3, generator=alone))
        time.sleep(0.001)

    return step


def run_together(steps: list[Callable[[], None]], seconds: float) -> tuple[list[int], list[BaseException]]:
    """How often each took its step, and what went wrong. On a busy machine they go on until each has taken one."""
    taken, errors, end = [0] * len(steps), list[BaseException](), time.monotonic() + seconds

    def goes_on() -> bool:
        left = end - time.monotonic()
        return not errors and (left > 0 or (0 in taken and left > -60))

    def repeat(number: int) -> None:
        try:
            while goes_on():
                steps[number]()
                taken[number] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(len(steps))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken, errors


@pytest.mark.parametrize("seconds", [2, pytest.param(20, marks=pytest.mark.zoo)])
def test_planners_and_servers_do_not_notice_each_other(seconds: float) -> None:
    steps = [*map(planner, PLANNED), server(), server(), compiled_server(), drawer()]
    before = process_state()
    taken, errors = run_together(steps, seconds)
    if errors:
        raise errors[0]
    assert min(taken) > 0
    after = process_state()
    assert {key: after[key] for key in before if key != "random numbers"} == {
        key: before[key] for key in before if key != "random numbers"
    }


def test_another_thread_may_run_the_very_model_that_is_planned() -> None:
    model, inputs = Served().eval(), torch.randn(2, 5, 16)
    with torch.no_grad():
        expected = model(inputs)
    plan = contents(secateur.plan_channels(model, inputs, 0.5))

    def serve() -> None:
        with torch.no_grad():
            torch.testing.assert_close(model(inputs), expected)

    def plan_again() -> None:
        assert contents(secateur.plan_channels(model, inputs, 0.5)) == plan

    taken, errors = run_together([serve, plan_again], 1)
    if errors:
        raise errors[0]
    assert min(taken) > 0


def test_an_export_silences_its_own_thread_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, log = logging.getLogger("a.server"), BufferingHandler(10)
    monkeypatch.setattr(logging.getLogger(), "handlers", [log])
    with quiet():
        print("exporting")
        logger.warning("exporting")
        speaker = threading.Thread(target=lambda: (print("serving"), logger.warning("serving")))
        speaker.start()
        speaker.join()
    assert capsys.readouterr().out == "serving\n"
    assert [record.getMessage() for record in log.buffer] == ["serving"]


def test_a_planned_model_draws_nothing_from_the_generators_of_others() -> None:
    """Neither from torch's own, in evaluation and in training, nor from one that the model holds."""

    class Random(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = torch.Generator().manual_seed(3)
            self.layers = nn.Sequential(nn.Linear(6, 8), nn.Dropout(), nn.Linear(8, 4))

        def forward(self, x: Tensor) -> Tensor:
            noise = torch.rand(6) + torch.rand_like(x) + torch.randint(0, 2, (6,)) + torch.randperm(6)
            own = torch.randn(6, generator=self.generator)
            return self.layers(x + noise + own + torch.empty(6).uniform_())  # type: ignore[no-any-return]

    model = Random()
    torch.manual_seed(5)
    others, own = torch.get_rng_state(), model.generator.get_state()
    secateur.apply(model, secateur.plan_channels(model, torch.ones(2, 6), 0.5))
    assert torch.equal(torch.get_rng_state(), others)
    assert torch.equal(model.generator.get_state(), own)
