"""`compare`: alternatives timed in turn beside a null control. A difference counts only beyond the noise."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast

import torch
from torch import nn

from secateur.base import ADDED_LATER, UsageError, aligned, copy_of_model, evaluating, require_count, threads_text
from secateur.bench.clocks import cpu_clock
from secateur.bench.devices import inputs_on, model_on
from secateur.bench.machine import Machine, this_machine
from secateur.bench.runner import Ready, Runner
from secateur.bench.runtimes import find_runtime, torch_threads
from secateur.bench.turns import NULL_CONTROL, Turns, time_in_turns

Models = Mapping[str, nn.Module]
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Comparison(Turns):
    """What `compare` returns; `print(comparison)` is a table with a verdict for each alternative."""

    baseline: str
    runtime: str
    precision: str
    threads: int
    machine: Machine
    notes: Mapping[str, str] = field(default_factory=dict)
    """By model, what the runtime says of how it runs it."""
    device: Device = field(default="cpu", metadata=ADDED_LATER)

    def verdict(self, name: str) -> str:
        """Never more than the measurement says."""
        return self[name].in_words(self.control)

    @property
    def conditions(self) -> tuple[str, ...]:
        return self.runtime, self.precision, self.place

    @property
    def place(self) -> str:
        """What it ran on; the threads of the processor do not matter to a GPU."""
        return threads_text(self.threads) if self.device == "cpu" else "CUDA"

    def rows(self, more: Mapping[str, Callable[[str], str]] | None = None) -> list[tuple[str, ...]]:
        """A head, a row for each alternative, and the null control. `more` columns are made from the row's name."""
        columns = more or {}
        rows = [("", "median ms", "p99 ms", *columns, f"× {self.baseline}", "")]
        for name, timing in self.timings.items():
            times = f"{1e3 * timing.median:.3f}", f"{1e3 * timing.p99:.3f}", *(cell(name) for cell in columns.values())
            compared = ("1", "") if name == self.baseline else (str(timing), timing.verdict(self.control))
            rows.append((name, *times, *compared))
        return [*rows, (NULL_CONTROL, "", "", *("" for _ in columns), str(self.control), "")]

    @property
    def note_lines(self) -> list[str]:
        return [f"{model}: {note}." for model, note in self.notes.items()]

    def to_json(self) -> dict[str, Any]:
        return {
            "baseline": self.baseline,
            "runtime": self.runtime,
            "precision": self.precision,
            "threads": self.threads,
            "device": self.device,
            "timings": {name: asdict(timing) for name, timing in self.timings.items()},
            "null_control": asdict(self.control),
            "notes": dict(self.notes),
            "machine": self.machine.to_json(),
        }

    def __str__(self) -> str:
        head = f"{', '.join(self.conditions)}, {self.control.rounds} rounds; {self.machine}"
        return "\n".join([head, *aligned(self.rows(), right=(1, 2)), *self.note_lines])


def compare(
    alternatives: Mapping[str, nn.Module | Callable[[], Any]],
    example_inputs: Any = None,
    *,
    runtime: str = "eager",
    threads: int = 1,
    device: str | None = None,
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
        device: for models, "cpu" or "cuda", to run copies of them there, timed by CUDA's events; by default where they
            are.
        max_seconds: when to stop even without a verdict.
        on_round: called after every round, for a progress bar.
    """
    _require_alternatives(alternatives, example_inputs, threads)
    if device is not None and not isinstance(next(iter(alternatives.values())), nn.Module):
        raise UsageError("Functions run where their own code says; leave the device out.")
    baseline, first = next(iter(alternatives.items()))
    with timing_conditions(threads):
        if isinstance(first, nn.Module):
            chosen = find_runtime(runtime, device=device)
            models = {name: model_on(device, model) for name, model in cast(Models, alternatives).items()}
            models[NULL_CONTROL] = copy_of_model(models[baseline])
            example_inputs = inputs_on(device, example_inputs)
            runners = [Runner(name, model, chosen, example_inputs, threads) for name, model in models.items()]
            *entries, control = [runner.ready(example_inputs) for runner in runners]
            return compare_ready(entries, control, max_seconds=max_seconds, on_round=on_round)
        turns = time_in_turns(alternatives, clock=cpu_clock(threads), max_seconds=max_seconds, on_round=on_round)
    return Comparison(turns.timings, turns.control, baseline, "functions", "as they are", threads, this_machine())


@contextmanager
def timing_conditions(threads: int) -> Iterator[None]:
    with torch_threads(threads), torch.inference_mode():
        yield


def compare_ready(
    entries: Sequence[Ready], control: Ready, *, max_seconds: float, on_round: Callable[[], Any] = lambda: None
) -> Comparison:
    """Times models that are loaded and checked already, under `timing_conditions`: the first is the baseline, and
    `control` its copy."""
    first = entries[0].runner
    with ExitStack() as modes:
        for entry in (*entries, control):
            modes.enter_context(evaluating(entry.runner.model))
        turns = time_in_turns(
            {entry.runner.name: entry.call for entry in entries},
            control=control.call,
            clock=first.loaded.clock,
            max_seconds=max_seconds,
            on_round=on_round,
        )
    notes = {entry.runner.name: entry.note for entry in entries if entry.note}
    conditions = first.runtime.name, first.loaded.precision, first.threads
    device: Device = "cuda" if first.device.type == "cuda" else "cpu"
    return Comparison(turns.timings, turns.control, first.name, *conditions, this_machine(), notes, device)


def _require_alternatives(alternatives: Mapping[str, Any], example_inputs: Any, threads: int) -> None:
    if not isinstance(alternatives, Mapping) or not alternatives:
        raise UsageError('Give the alternatives by name, such as {"dense": model, "pruned": pruned}.')
    require_free_name(alternatives)
    kinds = {isinstance(each, nn.Module) for each in alternatives.values()}
    if len(kinds) > 1 or not all(map(callable, alternatives.values())):
        raise UsageError("The alternatives have to be all models, or all functions without arguments.")
    if kinds == {True} and example_inputs is None:
        raise UsageError("Pass example_inputs to run the models on: a tensor, a tuple or a dict of arguments.")
    require_threads(threads)


def require_free_name(names: Container[str]) -> None:
    if NULL_CONTROL in names:
        raise UsageError(f"The name {NULL_CONTROL!r} is taken: the first one's copy runs under it; choose another.")


def require_threads(threads: int) -> None:
    require_count("threads", threads, "give how many to use, 1 or more.")
