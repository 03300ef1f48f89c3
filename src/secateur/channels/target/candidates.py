"""Candidates for a plan, cut and timed in their runtime beside the dense model and its null control."""

from __future__ import annotations

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
_MOST_SECONDS = 15.0


class Candidates:
    """The dense model is loaded once, and its copy; every candidate takes turns with them."""

    def __init__(self, module: nn.Module, example_inputs: Any, runtime: str, threads: int) -> None:
        self._module = copy_of_model(module).eval()
        self._inputs, self._threads = example_inputs, threads
        self._runtime = find_runtime(runtime)
        self._dense = self._load(DENSE, self._module)
        self._control = self._load(NULL_CONTROL, copy_of_model(self._module))

    @property
    def runtime(self) -> str:
        return f"{self._runtime.name} {self._runtime.version}"

    def time_dense(self) -> Comparison:
        return self._compare(self._dense)

    def time(self, plan: Plan) -> Comparison:
        """The model cut by the plan beside the dense one; refused if the runtime computes something else with it."""
        pruned = copy_of_model(self._module)
        cut(pruned, plan)
        return self._compare(self._dense, self._load(CUT, pruned))

    def _load(self, name: str, model: nn.Module) -> Ready:
        with uninterrupted(patience=1), timing_conditions(self._threads):
            return Runner(name, model, self._runtime, self._inputs, self._threads).ready(self._inputs)

    def _compare(self, *entries: Ready) -> Comparison:
        with uninterrupted(patience=1), timing_conditions(self._threads):
            return interruptible(compare_ready, entries, self._control, max_seconds=_MOST_SECONDS)


def require_runtime(goal: Goal, runtime: str) -> None:
    """That it is here and, for a latency, that it gains from fewer channels."""
    find_runtime(runtime)
    if goal.what == "latency" and runtime == "sparse":
        others = ", ".join(name for name in available_runtimes() if name != runtime)
        raise UsageError(
            f"The target {goal} is met by removing channels, and the runtime sparse gains only from zeros; choose one "
            f"of {others}."
        )
