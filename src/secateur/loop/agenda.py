"""The stops of a run, laid out before it starts: train → rank and prune → repair → fine-tune, under one of three
schedules.

"one-shot" cuts once and then recovers. "iterative" takes several smaller cuts, each of the same share of what is left,
and recovers after each. "gradual" raises the amount along a cubic ramp during the first three quarters of the
fine-tuning steps (Zhu & Gupta, 2017), so that training and pruning run at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from secateur.base import UsageError, parse_share, require_one_of
from secateur.plans import Schedule

TrainingPhase = Literal["train", "fine-tune"]

DEFAULT_SHARE = "15%"
DEFAULT_EPOCHS = 2
DEFAULT_CUTS = 5
RAMP_SHARE = 0.75
RAMP_CUTS = 20


@dataclass(frozen=True)
class Check:
    """Measures the model as it is."""

    label: str
    phase: Literal["before"] = "before"


@dataclass(frozen=True)
class Cut:
    """Ranks the weights and prunes up to `progress` (0 to 1) of the way to the final amount."""

    label: str
    progress: float
    phase: Literal["cut"] = "cut"


@dataclass(frozen=True)
class Repair:
    """Fits what the cut before it left to the outputs of the model before that cut."""

    label: str
    phase: Literal["repair"] = "repair"


@dataclass(frozen=True)
class Epoch:
    """One pass over the training data, or the first part of one."""

    label: str
    phase: TrainingPhase
    number: int
    """Counts all epochs of the run; it seeds the order of the data."""
    batches: int
    phase_start: int
    """How many batches of this phase came before; the learning rate follows the phase."""
    phase_batches: int
    ramp: tuple[tuple[int, float], ...] = ()
    """For the gradual schedule: before which batch of this epoch to cut, and how far."""

    @property
    def ends_ramp(self) -> bool:
        return any(progress >= 1 for _, progress in self.ramp)


Stop = Check | Cut | Repair | Epoch


@dataclass(frozen=True)
class Agenda:
    stops: tuple[Stop, ...]
    epoch_batches: int

    @property
    def batches(self) -> int:
        return self.batches_before(len(self.stops))

    def batches_before(self, stop: int) -> int:
        """Training batches in the first `stop` stops."""
        return sum(done.batches for done in self.stops[:stop] if isinstance(done, Epoch))


def make_agenda(
    schedule: Schedule,
    cuts: int,
    train_epochs: float,
    finetune_epochs: float,
    epoch_batches: int,
    repairs: bool = False,
) -> Agenda:
    require_cuts(schedule, cuts)
    if schedule == "gradual" and finetune_epochs == 0:
        raise UsageError("The gradual schedule prunes while it fine-tunes; give finetune some epochs.")
    recoveries = cuts if schedule == "iterative" else 1
    train = _batches(train_epochs, epoch_batches)
    recovery = _batches(finetune_epochs / recoveries, epoch_batches)

    stops: list[Stop] = [Check("before")] if not train else []
    stops += _epochs("train", "train", train, epoch_batches, 0, {})
    for i in range(recoveries):
        if schedule != "gradual":
            number = f" {i + 1}/{recoveries}" if recoveries > 1 else ""
            stops.append(Cut(f"cut{number}", (i + 1) / recoveries))
            stops += [Repair(f"repaired{number}")] if repairs else []
        label = f"recovery {i + 1}/{recoveries}" if recoveries > 1 else "fine-tune"
        epochs = sum(isinstance(stop, Epoch) for stop in stops)
        ramp = _ramp(recovery) if schedule == "gradual" else {}
        stops += _epochs(label, "fine-tune", recovery, epoch_batches, epochs, ramp)
    return Agenda(tuple(stops), epoch_batches)


def make_training_agenda(epochs: float, epoch_batches: int) -> Agenda:
    """Training alone; nothing is pruned."""
    batches = _batches(epochs, epoch_batches)
    stops = tuple(_epochs("train", "train", batches, epoch_batches, 0, {}))
    return Agenda(stops or (Check("before"),), epoch_batches)


def cut_steps(schedule: Schedule, cuts: int, steps: int, start: float, end: float) -> dict[int, float]:
    """After how many steps of somebody else's loop to cut, and how far, between two shares of the training."""
    first, last = round(start * steps), round(end * steps)
    if schedule == "one-shot":
        return {first: 1.0}
    most = last - first + 1
    if schedule == "iterative" and cuts > most:
        raise UsageError(f"There are {most} steps between start and end, and {cuts} cuts; train longer, or cut less.")
    return _spread(min(RAMP_CUTS, most) if schedule == "gradual" else cuts, first, last)


def require_cuts(schedule: Schedule, cuts: int) -> None:
    require_one_of("schedule", schedule, ("one-shot", "iterative", "gradual"))
    if not isinstance(cuts, int) or cuts < 1:
        raise UsageError(f"cuts is {cuts!r}; give the number of cuts of the iterative schedule, 1 or more.")
    if schedule != "iterative" and cuts != DEFAULT_CUTS:
        raise UsageError(f'cuts belongs to schedule="iterative", and this one is {schedule!r}; leave it out.')


def default_epochs(original_epochs: float | None) -> tuple[float, str]:
    """How long to fine-tune where nobody says, and a sentence that tells."""
    if original_epochs:
        epochs = max(1.0, parse_epochs(DEFAULT_SHARE, original_epochs))
        why = f"{DEFAULT_SHARE} of the {original_epochs:g} that the model was trained for, and at least 1"
    else:
        epochs, why = float(DEFAULT_EPOCHS), "how long the model was trained is not known"
    plural = "" if epochs == 1 else "s"
    return epochs, f"Fine-tuned for {epochs:g} epoch{plural} by default ({why}); finetune sets another number."


def parse_epochs(finetune: float | str, original_epochs: float | None) -> float:
    """Epochs of fine-tuning: a number of epochs as it is, or a share such as "15%" of the original epochs."""
    if isinstance(finetune, str):
        share = parse_share(finetune, "finetune")
        if not original_epochs:
            raise UsageError(
                f"finetune={finetune!r} is a share of the original epochs, which are unknown; "
                "give original_epochs, or a number of epochs to fine-tune for."
            )
        return share * float(original_epochs)
    return require_epochs("finetune", finetune)


def require_epochs(name: str, epochs: float) -> float:
    if isinstance(epochs, bool) or not isinstance(epochs, int | float) or not (0 <= epochs < math.inf):
        raise UsageError(f"{name} is {epochs!r}; give a number of epochs, 0 or more.")
    return float(epochs)


def _batches(epochs: float, epoch_batches: int) -> int:
    return max(1, round(epochs * epoch_batches)) if epochs > 0 else 0


def _ramp(batches: int) -> dict[int, float]:
    """Evenly spaced cuts, by batch, the last one with a quarter of the steps still to go."""
    last = max(0, math.ceil(RAMP_SHARE * batches) - 1)
    return _spread(min(RAMP_CUTS, last + 1), 0, last)


def _spread(cuts: int, first: int, last: int) -> dict[int, float]:
    return {first + round(i * (last - first) / max(1, cuts - 1)): (i + 1) / cuts for i in range(cuts)}


def _epochs(
    label: str, phase: TrainingPhase, batches: int, epoch_batches: int, number: int, ramp: dict[int, float]
) -> Iterator[Epoch]:
    count = math.ceil(batches / epoch_batches)
    for i in range(count):
        start = i * epoch_batches
        size = min(epoch_batches, batches - start)
        cuts = tuple((at - start, how_far) for at, how_far in ramp.items() if start <= at < start + size)
        yield Epoch(f"{label} epoch {i + 1}/{count}", phase, number + i, size, start, batches, cuts)
