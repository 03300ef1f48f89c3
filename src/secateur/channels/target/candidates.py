"""Candidates for a plan, cut and timed in their runtime beside the dense model and its null control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from secateur.base import UsageError, copy_of_model, interruptible, uninterrupted
from secateur.bench import (
    NULL_CONTROL,
    Comparison,
    Ready,
    Runner,
    available_runtimes,
    compare_ready,
    find_runtime,
    timing_conditions,
)
from secateur.plans import Goal, Plan
from secateur.surgery import cut

DENSE, CUT = "dense", "cut"
_MOST_SECONDS, _SECONDS_AGAIN = 15.0, 6.0


class Candidates:
    """The dense model is loaded once, and its copy; every candidate takes turns with them."""

    def __init__(self, module: nn.Module, example_inputs: Any, runtime: str, threads: int) -> None:
        self._module = copy_of_model(module).eval()
        self._inputs, self._threads = example_inputs, threads
        self._runtime = find_runtime(runtime)
        self._dense, self._control = self._load(DENSE), self._load(NULL_CONTROL)

    @property
    def runtime(self) -> str:
        return f"{self._runtime.name} {self._runtime.version}"

    def time_dense(self) -> Comparison:
        return self._compare((self._dense,), self._control, _MOST_SECONDS)

    def time(self, plan: Plan) -> Comparison:
        """The model cut by the plan beside the dense one; refused if the runtime computes something else with it."""
        return self._compare((self._dense, self._load(CUT, plan)), self._control, _MOST_SECONDS)

    def time_again(self, plan: Plan, times: int) -> list[Comparison]:
        """Likewise, with all of them loaded anew: where they lie in memory makes a difference, too."""
        entries, control = (self._load(DENSE), self._load(CUT, plan)), self._load(NULL_CONTROL)
        return [self._compare(entries, control, _SECONDS_AGAIN) for _ in range(times)]

    def _load(self, name: str, plan: Plan | None = None) -> Ready:
        model = copy_of_model(self._module)
        if plan is not None:
            cut(model, plan)
        with uninterrupted(patience=1), timing_conditions(self._threads):
            return Runner(name, model, self._runtime, self._inputs, self._threads).ready(self._inputs)

    def _compare(self, entries: Sequence[Ready], control: Ready, max_seconds: float) -> Comparison:
        with uninterrupted(patience=1), timing_conditions(self._threads):
            return interruptible(compare_ready, entries, control, max_seconds=max_seconds)


def require_runtime(goal: Goal, runtime: str, device: str | None = None) -> None:
    """That it is here, on the device, and, for a latency, that it gains from fewer channels."""
    find_runtime(runtime, device=device)
    if goal.what == "latency" and runtime == "sparse":
        others = ", ".join(name for name in available_runtimes() if name != runtime)
        raise UsageError(
            f"The target {goal} is met by removing channels, and the runtime sparse gains only from zeros; choose one "
            f"of {others}."
        )
