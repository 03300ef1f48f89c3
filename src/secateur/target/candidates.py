"""Candidates for a plan, cut and timed in their runtime beside the dense model and its null control."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from secateur.channel_plan import Plan
from secateur.enforce import apply
from secateur.measure.runtimes import find_runtime, torch_threads
from secateur.measure.timing import Timing, time_in_turns
from secateur.modes import evaluating

__all__ = ["Candidates"]

_DENSE, _CUT, _CONTROL = "dense", "cut", "null control"
_MOST_SECONDS = 15.0


class Candidates:
    """The dense model is loaded once, and its copy; every candidate takes turns with them."""

    def __init__(self, module: nn.Module, example_inputs: Any, runtime: str, threads: int) -> None:
        self._module = copy.deepcopy(module).eval()
        self._inputs, self._threads = example_inputs, threads
        self._runtime = find_runtime(runtime)
        self._dense, self._control = (self._load(each) for each in (self._module, copy.deepcopy(self._module)))
        self.measured_in = f"{runtime} {self._runtime.version}, {self._dense.precision}"

    def time_dense(self) -> Timing:
        return self._time({})[_DENSE]

    def time(self, plan: Plan) -> tuple[Timing, Timing, Timing]:
        """Of the dense model, of the model cut by the plan, and of the null control."""
        loaded = self._load(apply(copy.deepcopy(self._module), plan, verify=False))
        timings = self._time({_CUT: loaded.bind(self._inputs)})
        return timings[_DENSE], timings[_CUT], timings[_CONTROL]

    def _load(self, model: nn.Module) -> Any:
        with torch_threads(self._threads), torch.inference_mode(), evaluating(model):
            return self._runtime.load(model, self._inputs, self._threads)

    def _time(self, more: dict[str, Any]) -> dict[str, Timing]:
        calls = {_DENSE: self._dense.bind(self._inputs), **more, _CONTROL: self._control.bind(self._inputs)}
        with torch_threads(self._threads), torch.inference_mode():
            return time_in_turns(calls, clock=self._dense.clock, max_seconds=_MOST_SECONDS)
