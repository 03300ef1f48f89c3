"""Ctrl-C at any moment of a repair: the model is as it was or repaired, and no thread is left."""

from __future__ import annotations

import copy
import threading
import time

import pytest
import torch
from torch import Tensor, nn

import secateur
from tests.support.interrupts import Operation
from tests.surgery.test_interrupted import contents

pytestmark = [
    pytest.mark.usefixtures("ctrl_c_raises"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # where Python loses Ctrl-C
]

OURS = (
    "lockstep.py",
    "passes.py",
    "repairing.py",
    "fresh_passes.py",
    "calibration_set.py",
    "isolation.py",
    "watching.py",
)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def test_all_or_nothing_and_no_thread_is_left() -> None:
    torch.manual_seed(0)
    model, x = Small().train(), torch.randn(32, 3)
    plan = secateur.plan_channels(model, x[:2], 0.5)
    cut = secateur.apply(copy.deepcopy(model), plan)

    def repair(pruned: nn.Module) -> None:
        secateur.repair(pruned, plan, x, dense=model, progress=False)

    operation = Operation(lambda: copy.deepcopy(cut), repair, contents)
    before, moments, dense = threading.active_count(), operation.moments(*OURS), contents(model)
    left = [operation.left_by_interrupt(moment) for moment in moments[:: max(1, len(moments) // 40)]]
    assert [each for each in left if not each.clean] == []
    assert sum(each.arrived for each in left) >= 0.95 * len(left)
    assert threading.active_count() == before
    assert contents(model) == dense


def test_ctrl_c_while_a_pass_computes() -> None:
    import signal

    class Slow(Small):
        def forward(self, x: Tensor) -> Tensor:
            if threading.current_thread().name == "secateur-repair":
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]
                time.sleep(0.05)
            return super().forward(x)

    model, x = Slow(), torch.randn(32, 3)
    masks, before = secateur.plan_weights(model, 0.5), threading.active_count()
    state = contents(model)
    with pytest.raises(KeyboardInterrupt):
        secateur.repair(model, masks, x, progress=False)
    assert threading.active_count() == before
    assert contents(model) == state
