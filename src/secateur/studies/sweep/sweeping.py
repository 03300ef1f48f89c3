"""`sweep`: many runs from one dense model, as many at a time as there are cores, and the curve that they draw.

Whatever measures time runs alone: first the cuts that meet a latency, then training side by side, then all latencies in
turn. A sweep that was interrupted goes on from the folders of its runs.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from secateur.base import (
    Amount,
    SecateurError,
    SecateurWarning,
    UsageError,
    batch_of,
    copy_of_model,
    require_count,
    require_module,
)
from secateur.bench import Sheet, find_runtime
from secateur.checkpoint import MANIFEST_FILE, WEIGHTS_FILE, read_checkpoint
from secateur.loop import (
    DEFAULT_CUTS,
    Loss,
    Metric,
    Recipe,
    accuracy,
    classification_loss,
    digest_of_state,
    name_of,
    read_history,
    recipe_as_text,
    request_as_json,
)
from secateur.plans import Request, Schedule
from secateur.refit import EXAMPLES
from secateur.studies.pool.jobs import Failed, Job, Pool, Shared
from secateur.studies.pool.opening import open_pool
from secateur.studies.sweep.board import Board
from secateur.studies.sweep.one_run import (
    DenseWork,
    MeasureWork,
    Place,
    RunOptions,
    RunWork,
    Subject,
    SubjectOf,
    Wanted,
)
from secateur.studies.sweep.swept import DENSE_RUN, SWEEP_FILE, Sweep, SweptRun
from secateur.studies.sweep.version_names import Versions, named_versions, run_name

IN_TURN = 8
"""How many models are timed in turn beside the dense one; more would each get too few turns."""


def sweep(
    model: nn.Module,
    amounts: Sequence[Amount | Request] | Mapping[str, Amount | Request],
    *,
    seeds: int = 1,
    out: str | Path = Path("sweep"),
    example_inputs: Any,
    train_data: Any = None,
    eval_data: Any,
    calibration: Any = None,
    loss: Loss = classification_loss,
    metric: Metric = accuracy,
    train: float = 0,
    repair: int = EXAMPLES,
    finetune: float | str | None = None,
    original_epochs: float | None = None,
    schedule: Schedule = "one-shot",
    cuts: int = DEFAULT_CUTS,
    recipe: Recipe | None = None,
    tolerance: float = 0.02,
    measure: bool = True,
    runtime: str = "eager",
    batch: int | None = None,
    threads: int = 1,
    device: str | None = None,
    at_once: int | None = None,
    cores: int | None = None,
    processes: int = 1,
    progress: bool = True,
) -> Sweep:
    """Prunes copies of one model in many ways, each with several seeds, and measures what came out.

    Every combination is a run of `prune` in a folder of its own. With Ray (the extra `sweep`) they run side by side, on
    this machine or, where RAY_ADDRESS is set, on a cluster; without it one after another.

    Args:
        model: stays as it is.
        amounts: the cuts to try, as for `prune`: shares of zeros, `Zeros`, `Channels` and `Target`. A dict names them.
        seeds: each cut is made and fine-tuned this many times, with seeds 0, 1, …
        out: the folder for everything. The same call with the same folder goes on after an interruption; other cuts or
            more seeds add to it. Runs that failed are tried again.
        example_inputs: a tensor, a tuple or a dict of keyword arguments to run the model on.
        train_data: as for `prune`, like `eval_data`, `calibration`, `loss` and `metric`.
        eval_data: a DataLoader that `metric` judges the models on. Choose a version on data that you do not report on.
        calibration: inputs without labels to repair with, instead of the training data.
        loss: a function of the model and a batch.
        metric: a function of the model and `eval_data`, higher is better.
        train: epochs to train the dense model for, once for all runs.
        repair: examples to repair each cut with, as for `prune`; 0 for none.
        finetune: epochs, or a share of the original ones, as for `prune`.
        original_epochs: how long the model was trained before, where `train` does not say.
        schedule: as for `prune`.
        cuts: how many cuts the iterative schedule makes.
        recipe: optimizer, learning rate and distillation.
        tolerance: how far below the dense model a run may end and count as recovered.
        measure: whether to time the finished runs, in turn, with nothing else running.
        runtime: where to time them.
        batch: examples at once; by default 1, and with a latency target those of `example_inputs`.
        threads: for timing.
        device: "cpu" or "cuda", for timing; by default where the model is.
        at_once: how many runs train side by side at the most; by default as many as cores allow.
        cores: for each run; by default the cores are shared out among the runs.
        processes: for each run, which then trains on several GPUs or sockets as under torchrun.
        progress: False for silence.
    """
    require_module(model)
    data = {"train_data": train_data, "eval_data": eval_data, "calibration": calibration}
    handed = {**data, "example_inputs": example_inputs, "loss": loss, "metric": metric, "recipe": recipe or Recipe()}
    versions = named_versions(amounts)
    options = RunOptions(train, repair, finetune, original_epochs, schedule, cuts, tolerance)
    call = SweepCall(
        partial(_handed_over, model, handed),
        {name: cut.named_in(model) for name, cut in versions.items()},
        seeds,
        Path(out),
        options,
        Place(runtime, batch, threads, device) if measure else None,
        at_once=at_once,
        cores=cores,
        processes=processes,
    )
    return call.run(progress)


def _handed_over(model: nn.Module, handed: Mapping[str, Any]) -> Subject:
    made: dict[str, Any] = {
        name: partial(_itself, handed[name]) for name in ("train_data", "eval_data", "calibration", "example_inputs")
    }
    same = {name: handed[name] for name in ("loss", "metric", "recipe")}
    return Subject(partial(copy_of_model, model), lambda weights: copy_of_model(model), **made, **same)


def _itself(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class SweepCall:
    """All that a sweep was asked for, from Python or from the command line."""

    subject: SubjectOf
    versions: Versions
    seeds: int
    out: Path
    options: RunOptions
    place: Place | None
    """Where latencies are measured; None where they are not."""
    weights: Path | None = None
    """A file for the dense model's weights."""
    at_once: int | None = None
    cores: int | None = None
    processes: int = 1

    def __post_init__(self) -> None:
        require_count("seeds", self.seeds, "give how many to run each cut with, 1 or more.")
        if self.place is not None:
            find_runtime(self.place.runtime, device=self.place.device)  # not after hours of training

    @property
    def wanted(self) -> list[Wanted]:
        return [
            Wanted(run_name(version, seed), version, request, seed)
            for version, request in self.versions.items()
            for seed in range(self.seeds)
        ]

    def run(self, progress: bool = True) -> Sweep:
        earlier = _earlier(self.out)
        settings = self._settings()
        if earlier is not None:
            _require_same(earlier, settings, self.wanted, self.out)
        jobs = len(self.wanted)
        with (
            open_pool(self.out, jobs, self.at_once, self.cores, self.processes) as pool,
            Board([wanted.name for wanted in self.wanted], pool.at_once, progress) as board,
        ):
            return _Walk(self, pool, board, earlier, settings).walk()

    def _settings(self) -> dict[str, str]:
        """What runs of one sweep share, and what their results depend on."""
        subject = self.subject()
        told = {
            **asdict(self.options),
            # Where the dense model is trained here, it does not matter which weights a restarted program begins with.
            "weights": None if self.options.train else digest_of_state(subject.dense(self.weights)),
            "processes": self.processes,
            "loss": name_of(subject.loss),
            "metric": name_of(subject.metric),
            "recipe": recipe_as_text(subject.recipe),
        }
        del told["tolerance"]  # of the verdict alone
        return {name: json.dumps(value) for name, value in told.items()}


@dataclass
class _Walk:
    """dense → cuts that measure time, alone → all others side by side → … → latencies, alone."""

    call: SweepCall
    pool: Pool
    board: Board
    earlier: Sweep | None
    settings: Mapping[str, str]
    failures: dict[str, str] = field(default_factory=dict)

    def walk(self) -> Sweep:
        subject = self.pool.share(self.call.subject)
        self._dense(subject)
        self._prune(subject)
        found = self._found()
        found.save()
        if not found.finished:
            name, reason = next(iter(self.failures.items()))
            raise SecateurError(f"No run has ended well. {name}: {reason}")
        if self.call.place is None:
            return found
        return self._measure(subject, found, self.call.place)

    def _dense(self, subject: Shared[SubjectOf]) -> None:
        if _is_finished(self.call.out / DENSE_RUN):
            return
        weights = self.call.weights.absolute() if self.call.weights else None
        work = DenseWork(subject, weights, self.call.options.train, self.call.processes)
        for _, outcome in self._run([Job(DENSE_RUN, work, (DENSE_RUN,), alone=True, all_cores=True)]):
            if isinstance(outcome, Failed):
                raise SecateurError(outcome.reason)

    def _prune(self, subject: Shared[SubjectOf]) -> None:
        """Runs change sides when they pause: from alone to side by side after a cut, and back before the next."""
        self._found().save()
        pending = {run.name: run for run in self.call.wanted}
        for name in [name for name in pending if _is_finished(self.call.out / name)]:
            del pending[name]
            self._tell_finished(name)
        need_quiet = {name for name, run in pending.items() if run.measures_latency}
        while pending:
            for alone in (True, False):
                turn = [run for run in pending.values() if (run.name in need_quiet) == alone]
                for job, outcome in self._run([self._job(subject, run, alone) for run in turn]):
                    if outcome is False:
                        need_quiet ^= {job.name}
                        self.board.waits(job.name)
                    else:
                        del pending[job.name]
                        self._note_end(job.name, outcome)

    def _job(self, subject: Shared[SubjectOf], run: Wanted, alone: bool) -> Job:
        work = RunWork(subject, run, self.call.options, alone, self.call.processes)
        return Job(run.name, work, (run.name, DENSE_RUN), alone)

    def _note_end(self, name: str, outcome: Any) -> None:
        if isinstance(outcome, Failed):
            self.failures[name] = outcome.reason
            self.board.failed(name, outcome.reason)
        else:
            self._tell_finished(name)

    def _tell_finished(self, name: str) -> None:
        history = read_history(read_checkpoint(self.call.out / name).metrics)
        self.board.finished(name, history.metric_name, history.after)

    def _measure(self, subject: Shared[SubjectOf], found: Sweep, place: Place) -> Sweep:
        batch = place.batch or self._batch()
        place = replace(place, batch=batch)
        found = replace(found, sheets=tuple(self._still_true(found, place)))
        known = {name for sheet in found.sheets for name in sheet.footprints}
        new = [run.name for run in found.finished if run.name not in known]
        for start in range(0, len(new), IN_TURN):
            names = tuple(new[start : start + IN_TURN])
            self.board.measures(names)
            work = MeasureWork(subject, names, place)
            for _, outcome in self._run([Job("latencies", work, (DENSE_RUN, *names), alone=True)]):
                if isinstance(outcome, Sheet):
                    found = replace(found, sheets=(*found.sheets, outcome))
                    found.save()
                else:
                    warnings.warn(
                        f"The latencies of {', '.join(names)} are missing: {outcome.reason}",
                        SecateurWarning,
                        stacklevel=2,
                    )
        found.save()
        return found

    def _batch(self) -> int:
        """A latency target is met with the batch of the example inputs, and measured with the same."""
        if any(run.measures_latency for run in self.call.wanted):
            return batch_of(self.call.subject().example_inputs())
        return 1

    def _still_true(self, found: Sweep, place: Place) -> Iterator[Sheet]:
        """Earlier sheets of the same runs, measured as is asked for now."""
        before = {run.name: run.history for run in self.earlier.runs} if self.earlier else {}
        now = {run.name: run.history for run in found.runs}
        for sheet in self.earlier.sheets if self.earlier else ():
            same = [name for name in sheet.footprints if name != DENSE_RUN and now.get(name) == before.get(name)]
            asked = [_conditions(item.comparison, item.batch) for item in sheet.measurements]
            if len(same) == len(sheet.footprints) - 1 and asked == [_conditions(place, place.batch)]:
                yield sheet

    def _found(self) -> Sweep:
        out = self.call.out
        dense = read_history(read_checkpoint(out / DENSE_RUN).metrics)
        runs = tuple(_swept(out / run.name, run, self.failures.get(run.name, "")) for run in self.call.wanted)
        sheets = self.earlier.sheets if self.earlier else ()
        return Sweep(dense.metric_name, dense.dense, runs, sheets, self.settings, out)

    def _run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Any]]:
        return self.pool.run(jobs, self.board.hear)


def _conditions(where: Any, batch: int | None) -> tuple[Any, ...]:
    return where.runtime, where.threads, where.device or "cpu", batch


def _swept(folder: Path, run: Wanted, failure: str) -> SweptRun:
    cut = json.dumps(request_as_json(run.request))
    own = SweptRun(run.name, run.version, run.seed, failure=failure, cut=cut)
    if not _is_finished(folder):
        return own
    found = read_checkpoint(folder)
    history = replace(read_history(found.metrics), histogram=None)
    macs = found.plan.macs[1] if found.plan else None
    return replace(own, history=history, file_bytes=(folder / WEIGHTS_FILE).stat().st_size, planned_macs=macs)


def _is_finished(folder: Path) -> bool:
    return (folder / MANIFEST_FILE).exists()


def _earlier(out: Path) -> Sweep | None:
    return Sweep.load(out) if (out / SWEEP_FILE).exists() else None


def _require_same(earlier: Sweep, settings: Mapping[str, str], wanted: Sequence[Wanted], out: Path) -> None:
    """Other cuts and more seeds may join; what is there must have been made as is asked for now."""
    changed = [
        f"{name} was {earlier.settings.get(name)}, now {value}"
        for name, value in settings.items()
        if earlier.settings.get(name) != value
    ]
    cuts = {run.name: run.cut for run in earlier.runs}
    for run in wanted:
        cut = json.dumps(request_as_json(run.request))
        if cuts.get(run.name, cut) != cut:
            changed.append(f"{run.name} was {cuts[run.name]}, now {cut}")
    if changed:
        raise UsageError(
            f"{out} holds another sweep ({'; '.join(changed)}); choose another folder, or delete it to start anew."
        )
