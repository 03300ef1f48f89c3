"""What the workers of a sweep do: the dense model, one run of it, and the time that finished runs take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils import set_seed
from torch import nn

from secateur.bench import Sheet, measure
from secateur.loop import (
    Display,
    Loss,
    Metric,
    Recipe,
    Record,
    Result,
    RunInUse,
    dense_metric_of,
    load_run,
    prune,
    train,
)
from secateur.plans import Request, Schedule, Target, Zeros
from secateur.studies.pool.jobs import LOG_FILE, News, Shared, Tell, Worker
from secateur.studies.pool.several_processes import in_processes
from secateur.studies.sweep.swept import DENSE_RUN

_SECONDS_BETWEEN_NEWS = 1.0
_MAX_SECONDS = 20.0
"""To time some runs in turn, even without a verdict."""
_SECONDS_FOR_THE_LAST = 60.0
"""How long a worker that was taken for lost may hold on to a run."""


@dataclass(frozen=True)
class Subject:
    """What is swept: a model and its data. All of it is made anew for every run."""

    model: Callable[[], nn.Module]
    """Of the right architecture; its weights do not matter."""
    dense: Callable[[Path | None], nn.Module]
    """With the weights that all runs begin with, or that training begins with: those of a file, where one is given."""
    train_data: Callable[[], Any]
    eval_data: Callable[[], Any]
    calibration: Callable[[], Any]
    example_inputs: Callable[[], Any]
    loss: Loss
    metric: Metric
    recipe: Recipe


SubjectOf = Callable[[], Subject]


@dataclass(frozen=True)
class RunOptions:
    """What all runs of a sweep share: the options of `prune`."""

    train: float
    repair: int
    finetune: float | str | None
    original_epochs: float | None
    schedule: Schedule
    cuts: int
    tolerance: float

    @property
    def original(self) -> float | None:
        """How long the dense model was trained, for a share of that; only where `prune` asks."""
        asked = self.finetune is None or isinstance(self.finetune, str)
        return (self.original_epochs or self.train or None) if asked else None


@dataclass(frozen=True)
class Place:
    """Where and how latencies are measured."""

    runtime: str
    batch: int | None
    """None where nobody has said."""
    threads: int
    device: str | None


@dataclass(frozen=True)
class Step(News):
    """News of a run: what it does, and how far it is."""

    doing: str
    share: float
    metric: float | None = None
    """After its first stop, what the model was worth at the last one."""


class Paused(Exception):
    """The run cannot go on beside others, or need not go on alone."""


class _Telling(Display):
    """Takes the place of a progress bar, and stops the run where it has to change its surroundings."""

    def __init__(self, tell: Tell, keep: Callable[[], None], alone: bool, measures: bool) -> None:
        super().__init__(enabled=False)
        self._tell, self._keep, self._alone = tell, keep, alone
        self._pauses_at = () if not measures else ("train", "fine-tune") if alone else ("cut",)
        self._doing, self._done, self._batches = "", 0, 1
        self._metric: float | None = None
        self._ended, self._lasting, self._told = False, False, 0.0

    def start(self, batches: int, done: int, metric: str) -> None:
        self._batches, self._done = max(1, batches), done

    def before(self, phase: str) -> None:
        if phase != "repair":
            self._keep()
            self._lasting = self._ended
        if phase in self._pauses_at:
            raise Paused
        self._doing = phase
        self._say()

    def begin(self, stop: str) -> None:
        self._doing = stop
        self._say()

    def step(self, loss: float) -> None:
        self._done += 1
        self._say()

    def end(self, record: Record) -> None:
        print(f"{record.stop}: {record.metric:.4f}{record.pruned} ({record.seconds:.1f} s)")  # into the log
        self._metric, self._ended = record.metric, True
        self._say()

    def close(self) -> None:
        """There is no bar to take away."""

    def _say(self) -> None:
        """Now and then: a run of many short stops would have more to tell than to do."""
        if time.monotonic() - self._told > _SECONDS_BETWEEN_NEWS:
            self._told = time.monotonic()
            self._tell(Step(self._doing, self._done / self._batches, self._metric, lasting=self._lasting))


@dataclass(frozen=True)
class DenseWork:
    """Trains the model that all runs begin with, or only finds out what it is worth."""

    subject: Shared[SubjectOf]
    weights: Path | None
    epochs: float
    processes: int = 1

    def __call__(self, worker: Worker) -> None:
        weights = None if self.weights is None else worker.bring(self.weights)
        work = partial(_train_dense, self.subject.get(), weights, self.epochs, worker.root)
        _in_processes(self.processes, work, worker, worker.root / DENSE_RUN)


def _train_dense(
    subject_of: SubjectOf, weights: Path | None, epochs: float, root: Path, tell: Tell, keep: Callable[[], None]
) -> None:
    subject = subject_of()
    set_seed(0)  # a model that is not trained yet starts from the same random weights every time
    display = _Telling(tell, keep, alone=True, measures=False)
    train(
        subject.dense(weights),
        epochs,
        train_data=subject.train_data() if epochs else subject.eval_data(),  # there may be none, and none is needed
        eval_data=subject.eval_data(),
        loss=subject.loss,
        metric=subject.metric,
        recipe=subject.recipe,
        run_dir=root / DENSE_RUN,
        progress=display,
    )


@dataclass(frozen=True)
class Wanted:
    """A run that is to be made."""

    name: str
    version: str
    request: Request
    seed: int

    @property
    def measures_latency(self) -> bool:
        """Whether its cuts are made by measuring time, so that nothing may run beside them."""
        return isinstance(self.request, Target) and self.request.parsed_goal.what == "latency"


@dataclass(frozen=True)
class RunWork:
    """One run, until it ends or has to change its surroundings. Returns whether it has ended."""

    subject: Shared[SubjectOf]
    wanted: Wanted
    options: RunOptions
    alone: bool
    processes: int = 1

    def __call__(self, worker: Worker) -> bool:
        work = partial(_prune, self.subject.get(), self.wanted, self.options, self.alone, worker.root)
        return bool(_in_processes(self.processes, work, worker, worker.root / self.wanted.name))


def _prune(
    subject_of: SubjectOf,
    wanted: Wanted,
    options: RunOptions,
    alone: bool,
    root: Path,
    tell: Tell,
    keep: Callable[[], None],
) -> bool:
    subject = subject_of()
    dense = load_run(root / DENSE_RUN, subject.model())
    call = partial(
        prune,
        dense.model,
        wanted.request,
        example_inputs=None if isinstance(wanted.request, Zeros) else subject.example_inputs(),
        train_data=subject.train_data(),
        eval_data=subject.eval_data(),
        calibration=subject.calibration() if options.repair else None,
        loss=subject.loss,
        metric=subject.metric,
        repair=options.repair,
        finetune=options.finetune,
        original_epochs=options.original,
        schedule=options.schedule,
        cuts=options.cuts,
        recipe=subject.recipe,
        run_dir=root / wanted.name,
        seed=wanted.seed,
        tolerance=options.tolerance,
        progress=_Telling(tell, keep, alone, wanted.measures_latency),
    )
    try:
        with dense_metric_of(dense.dense):
            _once_it_is_free(call)
    except Paused:
        return False
    return True


@dataclass(frozen=True)
class MeasureWork:
    """Finished runs, timed in turn beside the dense model."""

    subject: Shared[SubjectOf]
    names: Sequence[str]
    place: Place

    def __call__(self, worker: Worker) -> Sheet:
        subject, place = self.subject.get()(), self.place
        models = {name: load_run(worker.root / name, subject.model()).model for name in (DENSE_RUN, *self.names)}
        return measure(
            models,
            subject.example_inputs(),
            runtimes=[place.runtime],
            batches=[place.batch or 1],
            threads=place.threads,
            device=place.device,
            max_seconds=_MAX_SECONDS,
            progress=False,
        )


def _once_it_is_free(call: Callable[[], Result]) -> Result:
    """A worker that was taken for lost may hold the run for some seconds more."""
    deadline = time.monotonic() + _SECONDS_FOR_THE_LAST
    while True:
        try:
            return call()
        except RunInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def _in_processes(count: int, work: Callable[[Tell, Callable[[], None]], Any], worker: Worker, folder: Path) -> Any:
    """In several processes, those of the worker do not reach its machinery: they tell it to keep what there is."""

    def hear(news: News) -> None:
        if isinstance(news, _Keep):
            worker.keep(folder.name)
        else:
            worker.tell(news)

    return in_processes(count, partial(_keeping_by_word, work), hear, folder / LOG_FILE)


class _Keep(News):
    """Told where what there is shall be kept."""


def _keeping_by_word(work: Callable[[Tell, Callable[[], None]], Any], tell: Tell) -> Any:
    return work(tell, partial(tell, _Keep()))
