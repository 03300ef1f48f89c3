"""`compare`: alternatives timed in turn, with a null control. A claim counts only outside the control's interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from secateur.base import UsageError, aligned, copy_of_model, evaluating
from secateur.bench.clocks import thread_clock, wall_clock
from secateur.bench.machine import Machine, this_machine
from secateur.bench.runner import Ready, Runner
from secateur.bench.runtimes import find_runtime, torch_threads
from secateur.bench.timing import Timing, time_in_turns

__all__ = ["NULL_CONTROL", "Comparison", "compare", "compare_ready", "require_threads", "timing_conditions"]

NULL_CONTROL = "null control"


@dataclass(frozen=True)
class Comparison:
    """What `compare` returns; `print(comparison)` is a table with a verdict for each alternative."""

    baseline: str
    timings: Mapping[str, Timing]
    control: Timing
    """The baseline against its own copy: what the measurement makes of no difference at all."""
    runtime: str
    precision: str
    threads: int
    machine: Machine
    notes: Mapping[str, str] = field(default_factory=dict)
    """By model, what the runtime says of how it runs it."""

    def __getitem__(self, name: str) -> Timing:
        return self.timings[name]

    def verdict(self, name: str) -> str:
        """Never more than the measurement says."""
        timing = self.timings[name]
        return {
            "too noisy": f"too noisy for a verdict after {timing.rounds} rounds",
            "no different": "no different from the null control",
            "faster": f"{1 / timing.ratio:.2f} times as fast",
            "slower": f"slower: takes {timing.ratio:.2f} times as long",
        }[timing.outcome(self.control)]

    @property
    def note_lines(self) -> list[str]:
        return [f"{model}: {note}." for model, note in self.notes.items()]

    def to_json(self) -> dict[str, Any]:
        return {
            "baseline": self.baseline,
            "runtime": self.runtime,
            "precision": self.precision,
            "threads": self.threads,
            "timings": {name: asdict(timing) for name, timing in self.timings.items()},
            "null_control": asdict(self.control),
            "notes": dict(self.notes),
            "machine": self.machine.to_json(),
        }

    def __str__(self) -> str:
        rows = [("", "ms", "median", "p99", f"× {self.baseline}", "")]
        for name, timing in {**self.timings, NULL_CONTROL: self.control}.items():
            own = "" if name in (self.baseline, NULL_CONTROL) else self.verdict(name)
            times = [f"{1e3 * seconds:.3f}" for seconds in (timing.seconds, timing.median, timing.p99)]
            rows.append((name, times[0], times[1], times[2], "1" if name == self.baseline else str(timing), own))
        threads = "one thread" if self.threads == 1 else f"{self.threads} threads"
        head = f"{self.runtime}, {self.precision}, {threads}, {self.control.rounds} rounds; {self.machine}"
        return "\n".join([head, *aligned(rows, right=(1, 2, 3)), *self.note_lines])


def compare(
    alternatives: Mapping[str, nn.Module | Callable[[], Any]],
    example_inputs: Any = None,
    *,
    runtime: str = "eager",
    threads: int = 1,
    max_seconds: float = 30.0,
    on_round: Callable[[], Any] = lambda: None,
) -> Comparison:
    """Times the alternatives against the first of them.

    Args:
        alternatives: by name, either models, run in evaluation mode on `example_inputs`, or functions without
            arguments, called as they are.
        example_inputs: a tensor, a tuple of arguments, or a dict of keyword arguments.
        runtime: for models: "eager", "compile", "sparse", "onnxruntime" or "openvino".
        threads: one thread is timed by its CPU time, several by the wall clock.
        max_seconds: when to stop even though an interval is still too wide for a verdict.
        on_round: called after every round, for a progress bar.
    """
    _require_alternatives(alternatives, example_inputs, threads)
    baseline, first = next(iter(alternatives.items()))
    chosen = find_runtime(runtime)
    with timing_conditions(threads):
        if isinstance(first, nn.Module):
            models: dict[str, Any] = {**alternatives, NULL_CONTROL: copy_of_model(first)}
            runners = [Runner(name, model, chosen, example_inputs, threads) for name, model in models.items()]
            entries = [runner.ready(example_inputs) for runner in runners]
            return compare_ready(entries, max_seconds=max_seconds, on_round=on_round)
        functions = {**alternatives, NULL_CONTROL: first}
        clock = thread_clock if threads == 1 else wall_clock
        timings = time_in_turns(functions, clock=clock, max_seconds=max_seconds, on_round=on_round)
    control = timings.pop(NULL_CONTROL)
    return Comparison(baseline, timings, control, "functions", "as they are", threads, this_machine())


@contextmanager
def timing_conditions(threads: int) -> Iterator[None]:
    with torch_threads(threads), torch.inference_mode():
        yield


def compare_ready(
    entries: Sequence[Ready], *, max_seconds: float, on_round: Callable[[], Any] = lambda: None
) -> Comparison:
    """Times models that are loaded and checked already, under `timing_conditions`: the first is the baseline, and one
    is called NULL_CONTROL."""
    first = entries[0].runner
    with ExitStack() as modes:
        for entry in entries:
            modes.enter_context(evaluating(entry.runner.model))
        calls = {entry.runner.name: entry.call for entry in entries}
        timings = time_in_turns(calls, clock=first.loaded.clock, max_seconds=max_seconds, on_round=on_round)
    control = timings.pop(NULL_CONTROL)
    precision, runtime = first.loaded.precision, first.runtime.name
    notes = {entry.runner.name: entry.note for entry in entries if entry.note and entry.runner.name in timings}
    return Comparison(first.name, timings, control, runtime, precision, first.threads, this_machine(), notes)


def _require_alternatives(alternatives: Mapping[str, Any], example_inputs: Any, threads: int) -> None:
    if not isinstance(alternatives, Mapping) or not alternatives:
        raise UsageError('Give the alternatives by name, such as {"dense": model, "pruned": pruned}.')
    if NULL_CONTROL in alternatives:
        raise UsageError(f"The name {NULL_CONTROL!r} is taken: a copy of the first alternative runs under it.")
    kinds = {isinstance(each, nn.Module) for each in alternatives.values()}
    if len(kinds) > 1 or not all(map(callable, alternatives.values())):
        raise UsageError("The alternatives have to be all models, or all functions without arguments.")
    if kinds == {True} and example_inputs is None:
        raise UsageError("Pass example_inputs to run the models on: a tensor, a tuple or a dict of arguments.")
    require_threads(threads)


def require_threads(threads: int) -> None:
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise UsageError(f"threads is {threads!r}; give how many to use, 1 or more.")
