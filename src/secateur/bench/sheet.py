"""`measure`: size, speed and memory of models in every runtime asked for, on one sheet.

For each runtime and batch the models take turns beside a null control, as in `compare`. A runtime that cannot run a
model, or computes something else with it, is named with the reason, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from secateur.base import (
    SecateurError,
    UsageError,
    aligned,
    as_call,
    batch_of,
    copy_of_model,
    explaining,
    flags_restored,
    interruptible,
    steps,
    uninterrupted,
    with_batch,
)
from secateur.bench.comparison import Comparison, compare_ready, require_free_name, require_threads, timing_conditions
from secateur.bench.devices import inputs_on, model_on
from secateur.bench.machine import Machine, this_machine
from secateur.bench.runner import Ready, Runner
from secateur.bench.runtimes import Runtime, available_runtimes, find_runtime
from secateur.bench.size import ModelSize, count_macs, measure_size
from secateur.bench.turns import NULL_CONTROL

NUMBERS = (1, 2, 3, 4)
"""The columns of the sheet's tables that hold numbers, to be aligned on the right."""
_NOTE = (
    "Median, p99 and throughput are by the wall clock. Ratios are of the faster half of the samples, with a 95 % "
    "interval; a difference counts only beyond the noise: the null control is the first model against its own copy. "
    "Memory is the peak of the first pass beyond what the process held before it. Files are uncompressed and store "
    "zeros as well. MACs are for one example, and one MAC is one multiply-add."
)


@dataclass(frozen=True)
class Footprint:
    """What does not depend on where the model runs."""

    size: ModelSize
    macs: int
    """Multiply-adds for one example."""
    precision: str
    """Of the weights in a file."""


@dataclass(frozen=True)
class Measurement:
    """All models in one runtime with one batch."""

    batch: int
    comparison: Comparison
    peak_megabytes: Mapping[str, float | None]

    def throughput(self, model: str) -> float:
        """Examples a second."""
        return self.batch / self.comparison[model].median

    @property
    def title(self) -> str:
        runtime, precision, place = self.comparison.conditions
        return f"{runtime}, {precision}, batch {self.batch}, {place}"

    def rows(self) -> list[tuple[str, ...]]:
        """A head, a row for each model, and the null control."""
        return self.comparison.rows(
            {
                "per second": lambda name: f"{self.throughput(name):,.0f}",
                "peak MB": lambda name: "–" if (peak := self.peak_megabytes[name]) is None else f"{peak:.1f}",
            }
        )

    def to_json(self) -> dict[str, Any]:
        comparison = self.comparison
        return {
            "runtime": comparison.runtime,
            "precision": comparison.precision,
            "threads": comparison.threads,
            "device": comparison.device,
            "batch": self.batch,
            "load": comparison.machine.load,
            "null_control": asdict(comparison.control),
            "notes": dict(comparison.notes),
            "models": {
                name: {
                    **asdict(timing),
                    "examples_per_second": self.throughput(name),
                    "peak_megabytes": self.peak_megabytes[name],
                    "outcome": None if name == comparison.baseline else timing.verdict(comparison.control),
                }
                for name, timing in comparison.timings.items()
            },
        }


@dataclass(frozen=True)
class Refusal:
    """A model that a runtime could not run, or not as eager PyTorch runs it."""

    runtime: str
    model: str
    batch: int | None
    """None where it could not be loaded at all."""
    reason: str
    """A sentence that begins with the model and the runtime."""

    def __str__(self) -> str:
        batch = "" if self.batch is None else f" with batch {self.batch}"
        return f"Not measured{batch}: {self.reason}"


@dataclass(frozen=True)
class Sheet:
    """What `measure` returns; `print(sheet)` is a table for every runtime and batch."""

    baseline: str
    footprints: Mapping[str, Footprint]
    measurements: tuple[Measurement, ...]
    refusals: tuple[Refusal, ...]
    machine: Machine
    """As it was when the measuring began."""

    def size_rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("", "parameters", "non-zeros", "file MB", "MACs", "")]
        for name, footprint in self.footprints.items():
            size = footprint.size
            counts = f"{size.parameters:,}", f"{size.nonzeros:,}", f"{size.file_bytes / 1e6:.2f}"
            rows.append((name, *counts, f"{footprint.macs:,}", footprint.precision))
        return rows

    @property
    def notes(self) -> list[str]:
        return [*map(str, self.refusals), _NOTE, str(self.machine)]

    def __str__(self) -> str:
        lines = aligned(self.size_rows(), right=NUMBERS)
        for measurement in self.measurements:
            table = aligned(measurement.rows(), right=NUMBERS)
            lines += ["", measurement.title, *table, *measurement.comparison.note_lines]
        return "\n".join([*lines, "", *self.notes])

    def to_json(self) -> dict[str, Any]:
        return {
            "baseline": self.baseline,
            "models": {
                name: {**asdict(footprint.size), "macs": footprint.macs, "precision": footprint.precision}
                for name, footprint in self.footprints.items()
            },
            "measurements": [measurement.to_json() for measurement in self.measurements],
            "not_measured": [asdict(refusal) for refusal in self.refusals],
            "machine": self.machine.to_json(),
        }


def measure(
    models: Mapping[str, nn.Module] | nn.Module,
    example_inputs: Any,
    *,
    runtimes: str | Sequence[str] = ("eager",),
    batches: Iterable[int] = (1,),
    threads: int = 1,
    device: str | None = None,
    max_seconds: float = 10.0,
    progress: bool = True,
) -> Sheet:
    """Measures models in evaluation mode against the first of them. They stay as they are.

    Args:
        models: by name, or a single one.
        example_inputs: a tensor, a tuple of arguments, or a dict of keyword arguments; the first axis is the batch.
        runtimes: some of "eager", "compile", "sparse", "onnxruntime" and "openvino", or "all" that can run here, or on
            the device.
        batches: how many examples to run at once; made of those in `example_inputs`.
        threads: one thread is timed by its CPU time, several by the wall clock.
        device: "cpu" or "cuda", to measure copies of the models there; by default where they are.
        max_seconds: for each runtime and batch, when to stop even without a verdict.
        progress: False for silence.
    """
    named = {"model": models} if isinstance(models, nn.Module) else models
    _require_models(named)
    wanted = available_runtimes(device) if runtimes == "all" else [runtimes] if isinstance(runtimes, str) else runtimes
    chosen = [find_runtime(name, " or all", device) for name in dict.fromkeys(wanted)]
    # Rising, because a runtime that has run a large batch already holds the memory for a small one.
    sizes = sorted(set(_checked_batches(batches, example_inputs)))
    require_threads(threads)
    machine = this_machine()
    named = {name: model_on(device, model) for name, model in named.items()}
    example_inputs = inputs_on(device, example_inputs)
    one_example = as_call(with_batch(example_inputs, 1))
    footprints = {name: _footprint(name, model, *one_example) for name, model in named.items()}
    total = len(chosen) * (len(named) + 1 + len(sizes))
    with (
        steps(total, "measure", progress) as begin,
        uninterrupted(patience=1),
        flags_restored(*named.values()),
        timing_conditions(threads),
    ):
        contest = _Contest(named, example_inputs, threads, max_seconds, begin)
        for runtime in chosen:
            interruptible(contest.run, runtime, sizes)
    return Sheet(next(iter(named)), footprints, tuple(contest.measurements), tuple(contest.refusals), machine)


class _Contest:
    """Takes the models through one runtime after the other."""

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        example_inputs: Any,
        threads: int,
        max_seconds: float,
        begin: Callable[[str], None],
    ) -> None:
        self.baseline, first = next(iter(models.items()))
        # The control goes first: what a runtime sets up once counts in no model's memory.
        self.models = {NULL_CONTROL: copy_of_model(first), **models}
        self.example_inputs, self.threads, self.max_seconds, self.begin = example_inputs, threads, max_seconds, begin
        self.measurements: list[Measurement] = []
        self.refusals: list[Refusal] = []

    def run(self, runtime: Runtime, batches: Sequence[int]) -> None:
        runners = []
        inputs = with_batch(self.example_inputs, batches[0])  # the sparse engine's layers are chosen for them
        for name, model in self.models.items():
            self.begin(f"{runtime.name}: loading {name}")
            try:
                runners.append(Runner(name, model, runtime, inputs, self.threads))
            except SecateurError as error:
                self._refuse(runtime, name, None, str(error))
        for batch in batches:
            self.begin(f"{runtime.name}: timing batch {batch}")
            self._time(runtime, runners, batch)

    def _time(self, runtime: Runtime, runners: Sequence[Runner], batch: int) -> None:
        inputs = with_batch(self.example_inputs, batch)
        entries: dict[str, Ready] = {}
        for runner in runners:
            try:
                entries[runner.name] = runner.ready(inputs, memory=True)
            except SecateurError as error:
                self._refuse(runtime, runner.name, batch, str(error))
        control = entries.pop(NULL_CONTROL, None)
        if control is None or self.baseline not in entries:
            for name in entries:
                reason = f"{name} in {runtime.name}: {self.baseline} does not run there, so there is no baseline."
                self._refuse(runtime, name, batch, reason)
            return
        comparison = compare_ready(list(entries.values()), control, max_seconds=self.max_seconds)
        peaks = {name: entry.peak_megabytes for name, entry in entries.items()}
        self.measurements.append(Measurement(batch, comparison, peaks))

    def _refuse(self, runtime: Runtime, name: str, batch: int | None, reason: str) -> None:
        if name != NULL_CONTROL:  # a copy of the baseline, which is refused as well
            self.refusals.append(Refusal(runtime.name, name, batch, reason))


def _footprint(name: str, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Footprint:
    floating = (tensor.dtype for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point())
    precision = str(next(floating, "no floating-point weights")).removeprefix("torch.")
    with explaining(f"{name} does not run on one example", "check example_inputs."):
        macs = count_macs(model, *args, **kwargs)
    return Footprint(measure_size(model), macs, precision)


def _require_models(models: Mapping[str, nn.Module]) -> None:
    if not isinstance(models, Mapping) or not models or not all(isinstance(m, nn.Module) for m in models.values()):
        raise UsageError('Give a model, or models by name, such as {"dense": model, "pruned": pruned}.')
    require_free_name(models)


def _checked_batches(batches: Iterable[int], example_inputs: Any) -> list[int]:
    sizes = list(batches) if isinstance(batches, Iterable) else [batches]
    if not sizes or any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
        raise UsageError(f"batches is {batches!r}; give whole numbers such as (1, 32).")
    if not batch_of(example_inputs) and sizes != [1]:
        raise UsageError("example_inputs has no tensor with an axis for the batch; leave batches out.")
    return sizes
