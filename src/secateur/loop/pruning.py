"""The whole loop: train → rank → prune → repair → fine-tune, stop by stop, resumable after each.

A cut and its repair are kept as one: a repair needs the model as it was before the cut.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import torch
from accelerate import Accelerator
from torch import nn

from secateur.base import (
    Amount,
    LossDiverged,
    SecateurWarning,
    UsageError,
    interruptible,
    moment_now,
    require_module,
    uninterrupted,
    unwrap,
)
from secateur.checkpoint import extra_states
from secateur.loop.agenda import (
    DEFAULT_CUTS,
    Agenda,
    Check,
    Cut,
    Epoch,
    Repair,
    default_epochs,
    make_agenda,
    make_training_agenda,
    parse_epochs,
    require_epochs,
)
from secateur.loop.dense_metric import known_dense
from secateur.loop.display import Display
from secateur.loop.identity import (
    digest_of_architecture,
    digest_of_inputs,
    digest_of_weights,
    name_of,
    recipe_as_text,
    request_as_json,
)
from secateur.loop.pruners import Pruner
from secateur.loop.recipe import Recipe
from secateur.loop.repairs import Repairer, example_of, read_calibration, require_examples
from secateur.loop.result import LOAD_OR_TRAIN, Record, Result
from secateur.loop.run_folder import RunFolder
from secateur.loop.state import State
from secateur.loop.task import NO_DATA, Loss, Metric, Task, accuracy, classification_loss
from secateur.loop.tuner import Tuner, lent_accelerator
from secateur.loop.untrained import looks_untrained
from secateur.plans import Masks, Options, Request, Schedule, Zeros, requested
from secateur.refit import EXAMPLES


def prune(
    model: nn.Module,
    amount: Amount | Request | None = None,
    *,
    channels: Amount | None = None,
    target: str | None = None,
    example_inputs: Any = None,
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
    run_dir: str | Path | None = None,
    seed: int = 0,
    accelerator: Accelerator | None = None,
    progress: bool | Display = True,
    tolerance: float = 0.02,
    **options: Unpack[Options],
) -> Result:
    """Trains (if asked), ranks, prunes, repairs and fine-tunes a copy of `model`, and tells what each stop did to it.

    Args:
        model: stays as it is; the pruned copy is `result.model`.
        amount: the share of weights to set to zero, such as 0.9 or "90%"; not needed with an N:M pattern. Or all that
            is to be said of the cut: `Zeros(0.9, scope="layer")`, `Channels(0.5, multiple_of=8)` or
            `Target("latency=0.5", runtime="openvino")`.
        channels: instead, the share of channels and heads to remove physically, such as 0.5 or "50%".
        target: instead, remove channels until this is left: "latency=0.5" (of the dense model's, measured),
            "latency=3ms", "macs=50%", "params=2M" or "size=4MB".
        example_inputs: for `channels` and `target`, a tensor, a tuple or a dict of keyword arguments to run the model
            on; by default the first batch of `calibration`, or what `loss` gives the model for that of `train_data`.
        train_data: a DataLoader of (inputs, labels) pairs, of dicts, or of whatever `loss` takes. Of inputs without
            labels, fine-tuning learns what the dense model answers. May be left out where there is `calibration` and
            nothing is trained.
        eval_data: a DataLoader that `metric` judges the model on.
        calibration: batches of inputs without labels to repair with, instead of the training data: a loader or list of
            tensors, of tuples of arguments or of dicts of keyword arguments.
        loss: a function of the model and a batch; cross-entropy by default.
        metric: a function of the model and `eval_data`, higher is better; accuracy by default. With several
            processes each of them calls it on the whole data.
        train: epochs to train before pruning, for a model that is not trained yet.
        repair: how many examples to fit the weights that are left on after each cut (`secateur.repair`); 0 for none.
            The gradual schedule repairs at its last cut. Several processes share the examples.
        finetune: epochs to fine-tune, or a share such as "15%" of the original epochs. By default 15 % of them and
            at least 1; where they are not known, 2. The result says so. Without train_data, 0.
        original_epochs: how long the model was trained before, where `train` does not say.
        schedule: "one-shot", "iterative" (several cuts, the fine-tuning shared out between them) or "gradual" (the
            amount rises along a cubic ramp while the model is fine-tuned).
        cuts: how many cuts the iterative schedule makes.
        recipe: optimizer, learning rate and distillation.
        run_dir: a folder that keeps the state after every stop. The same call with the same folder goes on from
            there after an interruption, and returns the stored result once the run has ended.
        seed: for the order of the data and everything random in training.
        accelerator: a fresh `accelerate.Accelerator` set up for precision, processes, accumulation and trackers.
        progress: False for silence, or a `Display` of your own.
        tolerance: how far below the dense model the metric may end for the model to count as recovered.
        **options: those of `Zeros`, with channels those of `Channels`, with a target those of `Target`.
    """
    require_module(model)
    request = requested(amount, channels, target, options).named_in(unwrap(model))
    train_epochs = require_epochs("train", train)
    original = train_epochs if original_epochs is None else require_epochs("original_epochs", original_epochs)
    if train_data is None and finetune is None:
        finetune_epochs, note = 0.0, "Not fine-tuned, because there is no train_data."
    else:
        finetune_epochs, note = _finetuning(finetune, original, original_epochs is not None)
    require_examples(repair, calibration)
    if train_data is None:
        _require_no_training(request, calibration, train_epochs, finetune_epochs)
    learnt_from = read_calibration(calibration, repair, seed)
    if learnt_from and example_inputs is None and not isinstance(request, Zeros):
        example_inputs = example_of(unwrap(model), learnt_from[0])
    pruner = Pruner(request, schedule, example_inputs, trains_first=train_epochs > 0)
    task = Task(NO_DATA if train_data is None else train_data, eval_data, loss, metric)
    # The values of the inputs count only where a score is made of them.
    inputs = None if example_inputs is None else digest_of_inputs(example_inputs, request.score == "activation")
    stops = {"schedule": schedule, "cuts": cuts, "train": train_epochs, "repair": repair, "finetune": finetune_epochs}
    settings = {**stops, "example_inputs": inputs, **request_as_json(request)}
    if learnt_from:
        settings["calibration"] = digest_of_inputs(learnt_from, values=True)
    untrained = not train_epochs and looks_untrained(model)
    run = _Run(
        model, task, recipe or Recipe(), settings, run_dir, seed, accelerator, progress, tolerance, note, untrained
    )
    if untrained:
        looks = "The model looks untrained: its weights are as a constructor leaves them."
        warnings.warn(f"{looks} {LOAD_OR_TRAIN}", SecateurWarning, stacklevel=2)

    def stops_of(batches: int, repairs: bool) -> Agenda:
        return make_agenda(schedule, cuts, train_epochs, finetune_epochs, batches, repairs)

    return run.walk(stops_of, pruner, Repairer(repair, learnt_from))


def _require_no_training(request: Request, calibration: Any, train: float, finetune: float) -> None:
    if train or finetune or request.score == "taylor":
        needing = "train" if train else "finetune" if finetune else 'the score "taylor"'
        otherwise = "use finetune=0" if not train and finetune else "do without"
        raise UsageError(f"There is no train_data, and {needing} needs some; give it, or {otherwise}.")
    if calibration is None:
        raise UsageError("There is no data; give train_data, or unlabelled inputs as calibration with finetune=0.")


def _finetuning(finetune: float | str | None, original: float, original_given: bool) -> tuple[float, str]:
    """The epochs, and where nobody chose them a sentence that tells."""
    if finetune is None:
        return default_epochs(original)
    if original_given and not isinstance(finetune, str):
        raise UsageError(
            f'original_epochs belongs to a share such as finetune="15%", and finetune is {finetune!r}; leave one out.'
        )
    return parse_epochs(finetune, original), ""


def train(
    model: nn.Module,
    epochs: float,
    *,
    train_data: Any,
    eval_data: Any,
    loss: Loss = classification_loss,
    metric: Metric = accuracy,
    recipe: Recipe | None = None,
    run_dir: str | Path | None = None,
    seed: int = 0,
    accelerator: Accelerator | None = None,
    progress: bool | Display = True,
) -> Result:
    """Trains a copy of `model` without pruning it: the first stop of `prune` on its own.

    For pruning one trained model in several ways, or for telling whether longer training alone would do as well.

    Args:
        model: stays as it is.
        epochs: to train; a fraction ends within an epoch.
        train_data: a DataLoader over the training data.
        eval_data: a DataLoader that `metric` judges the model on.
        loss: a function of the model and a batch; cross-entropy by default.
        metric: a function of the model and `eval_data`, higher is better; accuracy by default.
        recipe: the optimizer and its learning rate.
        run_dir: a folder for the states of the run; the same call with it goes on where an interrupted one stopped.
        seed: for the order of the data.
        accelerator: for mixed precision, several processes or trackers.
        progress: whether to show a progress bar, or a display of your own.
    """
    train_epochs = require_epochs("epochs", epochs)
    task, settings = Task(train_data, eval_data, loss, metric), {"train": train_epochs}
    run = _Run(model, task, recipe or Recipe(), settings, run_dir, seed, accelerator, progress)
    return run.walk(lambda batches, repairs: make_training_agenda(train_epochs, batches), None, None)


_WITHOUT_LABELS = "The training data has no labels, so fine-tuning learnt from the dense model's answers."

_MakeStops = Callable[[int, bool], Agenda]
"""Of the batches in an epoch and whether there is a repair."""


@dataclass(frozen=True)
class _Run:
    """What a walk over the stops needs; `prune` and `train` differ in the stops alone."""

    model: nn.Module
    task: Task
    recipe: Recipe
    settings: dict[str, Any]
    run_dir: str | Path | None
    seed: int
    accelerator: Accelerator | None
    progress: bool | Display
    tolerance: float = 0.0
    note: str = ""
    untrained: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise UsageError(f"seed is {self.seed!r}; give a whole number from 0 to 4294967295.")
        if not isinstance(self.tolerance, int | float) or not self.tolerance >= 0:
            raise UsageError(f"tolerance is {self.tolerance!r}; give a number in the metric's units, such as 0.02.")

    def walk(self, make_stops: _MakeStops, pruner: Pruner | None, repairer: Repairer | None) -> Result:
        """Passes every stop that an earlier, interrupted walk has not, and returns the outcome."""
        with (
            uninterrupted(patience=1),
            torch.set_grad_enabled(torch.is_grad_enabled()),
            lent_accelerator(self.accelerator, self.seed) as accelerator,
            ExitStack() as until_done,
        ):
            tuner = Tuner(self.model, self.task, self.recipe, accelerator)
            folder = until_done.enter_context(RunFolder(self.run_dir, accelerator)) if self.run_dir else None
            try:
                return interruptible(self._walk, tuner, folder, make_stops, pruner, repairer)
            finally:
                tuner.close()

    def _walk(
        self,
        tuner: Tuner,
        folder: RunFolder | None,
        make_stops: _MakeStops,
        pruner: Pruner | None,
        repairer: Repairer | None,
    ) -> Result:
        settings: Mapping[str, Any] = {**self.settings, **self._circumstances(tuner)}
        if folder:
            list(extra_states(unwrap(self.model)))  # what no checkpoint holds is refused now, not after hours
            settings = folder.open(settings)
            if folder.finished:
                stored = folder.stored_result(copy.deepcopy(unwrap(self.model)))
                return replace(stored, tolerance=self.tolerance, note=self.note)
        repairs = bool(settings.get("repair"))
        tuner.starts_repaired = repairs and settings.get("schedule") != "gradual"
        agenda = make_stops(tuner.epoch_batches, repairs)
        display = self._display(tuner.accelerator.is_main_process)
        try:
            state = self._pass_stops(tuner, agenda, folder, display, pruner, repairer if repairs else None)
        except LossDiverged as error:
            kept = f"the state before that epoch is kept in {folder.path}" if folder else "your model is as it was"
            raise LossDiverged(
                f"{error}; {kept}. Lower lr=… or finetune_scale in the Recipe and start again."
            ) from None
        finally:
            display.close()
        result = Result(
            state.records,
            self.tolerance,
            self.task.metric_name,
            state.histogram,
            moment_now(),
            self.untrained,
            model=tuner.finished_model(state.plan),
            masks=state.masks or Masks({}),
            plan=state.plan,
            note=" ".join(filter(None, (self.note, _WITHOUT_LABELS if tuner.learnt_without_labels else ""))),
        )
        if folder:
            folder.finish(result)
        return result

    def _pass_stops(
        self,
        tuner: Tuner,
        agenda: Agenda,
        folder: RunFolder | None,
        display: Display,
        pruner: Pruner | None,
        repairer: Repairer | None,
    ) -> State:
        """train → rank → prune → repair → fine-tune."""
        state = _begin(tuner, folder, pruner, repairer)

        def rank_and_prune(progress: float, repairer: Repairer | None) -> None:
            nonlocal state
            assert pruner is not None, "an agenda of training alone has no cut"
            state = pruner.prune(tuner, state, progress, display.enabled, repairer)

        def along_ramp(progress: float) -> None:
            last = repairer if progress >= 1 else None
            rank_and_prune(progress, last)
            if last is not None:
                last.repair(tuner, state, show=False)

        fine_tunes = any(stop.phase == "fine-tune" for stop in agenda.stops)
        tuner.start_trackers()
        display.start(agenda.batches, agenda.batches_before(len(state.records)), self.task.metric_name)
        for stop in agenda.stops[len(state.records) :]:
            display.before(stop.phase)
            started = time.monotonic()
            if fine_tunes and stop.phase in ("cut", "fine-tune"):
                tuner.remember_dense(folder.path if folder else None, state.plan is None and state.masks is None)
            if repairer is not None and (isinstance(stop, Repair) or (isinstance(stop, Epoch) and stop.ends_ramp)):
                repairer.find_inputs(tuner)  # an epoch reads the data itself
            if isinstance(stop, Cut):
                rank_and_prune(stop.progress, repairer)  # a search for a latency shows a bar of its own
            if isinstance(stop, Repair) and repairer is not None:
                repairer.repair(tuner, state, display.enabled)  # and so does a repair
            display.begin(stop.label)
            if isinstance(stop, Epoch):
                tuner.train_epoch(stop, on_step=display.step, cut=along_ramp)
            known = known_dense() if isinstance(stop, Check) else None
            metric, counted = known or tuner.evaluate()
            seconds = time.monotonic() - started
            epochs = agenda.batches_before(len(state.records) + 1) / agenda.epoch_batches
            now = Record(stop.label, stop.phase, epochs, metric, state.sparsity, tuner.size(), seconds, counted)
            state = replace(state, records=(*state.records, now))
            display.end(now)
            tuner.log(len(state.records), now)
            if folder and not (isinstance(stop, Cut) and repairer is not None):
                folder.save(state, tuner)
        return state

    def _circumstances(self, tuner: Tuner) -> dict[str, Any]:
        """What a resumed run must share with the one it continues."""
        return {
            "architecture": digest_of_architecture(self.model),
            # Where the run trains the model itself, it does not matter which weights a restarted program begins with.
            "weights": None if self.settings["train"] else digest_of_weights(self.model),
            "loss": name_of(self.task.loss),
            "metric": name_of(self.task.metric),
            "recipe": recipe_as_text(self.recipe),
            "distill": self.recipe.distill,
            "batches per epoch": tuner.epoch_batches,
            "processes": tuner.accelerator.num_processes,
            "seed": self.seed,
        }

    def _display(self, main_process: bool) -> Display:
        if isinstance(self.progress, Display) and main_process:
            return self.progress
        return Display(enabled=bool(self.progress) and main_process)


def _begin(tuner: Tuner, folder: RunFolder | None, pruner: Pruner | None, repairer: Repairer | None) -> State:
    """The state that an interrupted walk left; a new one begins with a look at whether it can work."""
    if pruner is not None:
        pruner.find_inputs(tuner)
        tuner.settle_distillation()
    state = folder.resume(tuner) if folder else State()
    if not state.records:
        if pruner is not None:
            pruner.check(tuner)
        if repairer is not None:
            repairer.check(tuner)
        if folder:
            folder.begin()
    return state
