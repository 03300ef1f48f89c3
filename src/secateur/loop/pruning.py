"""The whole loop: train → rank → prune → fine-tune, stop by stop, resumable after each."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from accelerate import Accelerator
from torch import nn

from secateur.base import Amount, LossDiverged, UsageError, listed, parse_amount, unwrap
from secateur.checkpoint import extra_states
from secateur.loop.agenda import (
    Agenda,
    Cut,
    Epoch,
    Schedule,
    make_agenda,
    make_training_agenda,
    parse_epochs,
    require_epochs,
)
from secateur.loop.display import Display, SilentDisplay, make_display
from secateur.loop.identity import digest_of_architecture, digest_of_weights, ranking_as_json, recipe_as_text
from secateur.loop.pruners import ChannelPruner, Pruner, WeightPruner, require_channel_options
from secateur.loop.recipe import Recipe
from secateur.loop.result import Record, Result
from secateur.loop.run_folder import RunFolder
from secateur.loop.task import Loss, Metric, Task, accuracy, classification_loss
from secateur.loop.tuner import Tuner, lent_accelerator
from secateur.plans import Masks
from secateur.weights import Ranking

__all__ = ["prune", "train"]


def prune(
    model: nn.Module,
    amount: Amount | None = None,
    *,
    channels: Amount | None = None,
    target: str | None = None,
    example_inputs: Any = None,
    train_data: Any,
    eval_data: Any,
    loss: Loss = classification_loss,
    metric: Metric = accuracy,
    train: float = 0,
    finetune: float | str = "15%",
    original_epochs: float | None = None,
    schedule: Schedule = "one-shot",
    cuts: int = 5,
    recipe: Recipe | None = None,
    run_dir: str | Path | None = None,
    seed: int = 0,
    accelerator: Accelerator | None = None,
    progress: bool | Display = True,
    tolerance: float = 0.02,
    **ranking: Unpack[Ranking],
) -> Result:
    """Trains (if asked), ranks, prunes and fine-tunes a copy of `model`, and tells what each stop did to it.

    Args:
        model: stays as it is; the pruned copy is `result.model`.
        amount: the share of weights to set to zero, such as 0.9 or "90%"; not needed with an N:M pattern.
        channels: instead, the share of channels and heads to remove physically, such as 0.5 or "50%".
        target: instead, remove channels until this is left: "latency=0.5" (of the dense model's, measured),
            "latency=3ms", "macs=50%", "params=2M" or "size=4MB".
        example_inputs: for `channels` and `target`, a tensor, a tuple or a dict of keyword arguments to run the model
            on; by default what `loss` gives the model for the first training batch.
        train_data: a DataLoader of (inputs, labels) pairs, of dicts, or of whatever `loss` takes.
        eval_data: a DataLoader that `metric` judges the model on.
        loss: a function of the model and a batch; cross-entropy by default.
        metric: a function of the model and `eval_data`, higher is better; accuracy by default. With several
            processes each of them calls it on the whole data.
        train: epochs to train before pruning, for a model that is not trained yet.
        finetune: epochs to fine-tune, or a share such as "15%" of the original epochs.
        original_epochs: how long the model was trained before, where `train` does not say.
        schedule: "one-shot", "iterative" (several cuts, the fine-tuning shared out between them) or "gradual" (the
            amount rises along a cubic ramp while the model is fine-tuned).
        cuts: how many cuts the iterative schedule makes.
        recipe: optimizer, learning rate and distillation.
        run_dir: a folder that keeps the state after every stop. The same call with the same folder goes on from
            there after an interruption, and returns the stored result once the run has ended.
        seed: for the order of the data and everything random in training.
        accelerator: a fresh `accelerate.Accelerator` set up for precision, processes, accumulation and trackers.
        progress: False for silence.
        tolerance: how far below the dense model the metric may end for the model to count as recovered.
        **ranking: `scope`, `pattern`, `score`, `keep`, `include` and `per_layer`, as for `plan_weights`; with
            channels those of `plan_channels`: `scope`, `score`, `keep`, `per_layer`, `multiple_of`, `floor`, and for a
            target `runtime`, `batch` and `threads`.
    """
    train_epochs = require_epochs("train", train)
    original = train_epochs if original_epochs is None else require_epochs("original_epochs", original_epochs)
    finetune_epochs = parse_epochs(finetune, original)
    for option in ("keep", "include"):
        if option in ranking:
            ranking[option] = listed(option, ranking[option], unwrap(model))
    if channels is not None and target is not None:
        raise UsageError("Give either channels=… or target=…, not both: a target decides how many channels go.")
    if channels is not None or target is not None:
        require_channel_options(amount, schedule, ranking)
        pruner: Pruner = ChannelPruner(channels, ranking, schedule, example_inputs, target)
    else:
        pruner = WeightPruner(model, amount, ranking, schedule)

    run = _Run(
        model=model,
        task=Task(train_data, eval_data, loss, metric),
        recipe=recipe or Recipe(),
        settings={
            "amount": None if amount is None else parse_amount(amount),
            "schedule": schedule,
            "cuts": cuts,
            "train": train_epochs,
            "finetune": finetune_epochs,
            "channels": None if channels is None else parse_amount(channels),
            "target": target,
            "ranking": ranking_as_json(ranking),
        },
        run_dir=run_dir,
        seed=seed,
        accelerator=accelerator,
        progress=progress,
        tolerance=tolerance,
    )
    return run.walk(lambda batches: make_agenda(schedule, cuts, train_epochs, finetune_epochs, batches), pruner)


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
    run = _Run(
        model=model,
        task=Task(train_data, eval_data, loss, metric),
        recipe=recipe or Recipe(),
        settings={"train": train_epochs},
        run_dir=run_dir,
        seed=seed,
        accelerator=accelerator,
        progress=progress,
        tolerance=0.0,
    )
    return run.walk(lambda batches: make_training_agenda(train_epochs, batches), None)


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
    tolerance: float

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise UsageError(f"seed is {self.seed!r}; give a whole number from 0 to 4294967295.")
        if not isinstance(self.tolerance, int | float) or not self.tolerance >= 0:
            raise UsageError(f"tolerance is {self.tolerance!r}; give a number in the metric's units, such as 0.02.")

    def walk(self, make_stops: Callable[[int], Agenda], pruner: Pruner | None) -> Result:
        """Passes every stop that an earlier, interrupted walk has not, and returns the outcome."""
        with lent_accelerator(self.accelerator, self.seed) as accelerator:
            tuner = Tuner(self.model, self.task, self.recipe, accelerator)
            agenda = make_stops(tuner.epoch_batches)
            folder = RunFolder(self.run_dir, accelerator) if self.run_dir else None
            if folder:
                list(extra_states(unwrap(self.model)))  # what no checkpoint holds is refused now, not after hours
                folder.open({**self.settings, **self._circumstances(tuner)})
                if folder.finished:
                    stored = folder.stored_result(copy.deepcopy(unwrap(self.model)))
                    return replace(stored, tolerance=self.tolerance)
            display = self._display(accelerator.is_main_process)
            try:
                if pruner is not None:
                    pruner.rehearse(tuner)
                records = self._pass_stops(tuner, agenda, folder, display, pruner)
            except LossDiverged as error:
                kept = f"the state before that epoch is kept in {folder.path}" if folder else "your model is as it was"
                raise LossDiverged(
                    f"{error}; {kept}. Lower lr or finetune_scale in the Recipe and start again."
                ) from None
            finally:
                display.close()
                tuner.close()
            masks = tuner.masks or Masks({})
            metric = self.task.metric_name
            model = tuner.plain_model()
            result = Result(model, masks, tuple(records), self.tolerance, metric, tuner.plan, tuner.histogram)
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
    ) -> list[Record]:
        """train → rank → prune → fine-tune."""
        rank_and_prune = partial(pruner.prune, tuner) if pruner is not None else _never_prune
        records = folder.resume(tuner) if folder else []
        tuner.start_trackers()
        display.start(agenda.batches, agenda.batches_before(len(records)), self.task.metric_name)
        for stop in agenda.stops[len(records) :]:
            started = time.monotonic()
            display.begin(stop.label)
            if stop.phase in ("cut", "fine-tune"):
                tuner.remember_dense(folder.path if folder else None)
            match stop:
                case Cut():
                    rank_and_prune(stop.progress)
                case Epoch():
                    tuner.train_epoch(stop, on_step=display.step, cut=rank_and_prune)
            metric, counted = tuner.evaluate()
            seconds = time.monotonic() - started
            epochs = agenda.batches_before(len(records) + 1) / agenda.epoch_batches
            now = Record(stop.label, stop.phase, epochs, metric, tuner.sparsity, tuner.size(), seconds, counted)
            records.append(now)
            display.end(now)
            tuner.log(len(records), now)
            if folder:
                folder.save(records, tuner)
        return records

    def _circumstances(self, tuner: Tuner) -> dict[str, Any]:
        """What a resumed run must share with the one it continues."""
        return {
            "architecture": digest_of_architecture(self.model),
            # Where the run trains the model itself, it does not matter which weights a restarted program begins with.
            "weights": None if self.settings["train"] else digest_of_weights(self.model),
            "recipe": recipe_as_text(self.recipe),
            "batches per epoch": tuner.epoch_batches,
            "processes": tuner.accelerator.num_processes,
            "seed": self.seed,
        }

    def _display(self, main_process: bool) -> Display:
        if isinstance(self.progress, bool):
            return make_display(self.progress and main_process)
        return self.progress if main_process else SilentDisplay()


def _never_prune(progress: float) -> None:
    raise AssertionError("an agenda of training alone has no cut")
