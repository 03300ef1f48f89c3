"""`PruningCallback` for the Trainer of Lightning, and `KeepsCuts` for modules whose checkpoints are to load again."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any

from secateur.base import UsageError, parse_json, refusing_damage
from secateur.integrations.pruning_state import PruningState
from secateur.integrations.training_pruner import TrainingPruner, cut_as_before, followed_by, left_by
from secateur.integrations.while_training import TrainingCut
from secateur.plans import Masks, Plan, Zeros

try:
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
        from pytorch_lightning import Callback  # each package has a class of its own, and takes the other's
    else:
        from lightning.pytorch import Callback
except ModuleNotFoundError:
    try:
        from pytorch_lightning import Callback
    except ModuleNotFoundError as error:
        raise UsageError("The callback for Lightning needs lightning: pip install lightning.") from error

PLAN_KEY, STATE_KEY = "secateur_plan", "secateur_state"
"""Of a Lightning checkpoint."""


class KeepsCuts:
    """As the first base of a module, `class Classifier(KeepsCuts, LightningModule)`: its checkpoints hold the plan that
    cut it, and `load_from_checkpoint` and `fit(ckpt_path=…)` cut it again before they load its weights."""

    pruned_by: Plan | None = None
    """All cuts as one plan. `PruningCallback` sets it; set it yourself after `secateur.apply(module, plan)`."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)  # type: ignore[misc]
        if self.pruned_by is not None:
            checkpoint[PLAN_KEY] = json.dumps(self.pruned_by.to_json())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)  # type: ignore[misc]
        if PLAN_KEY in checkpoint:
            with refusing_damage("The plan in the checkpoint"):
                plan = Plan.from_json(parse_json(checkpoint[PLAN_KEY].encode()))
            cut_as_before(self, plan)  # type: ignore[arg-type]
            self.pruned_by = plan


@dataclass(eq=False)
class PruningCallback(TrainingCut, Callback):
    """Prunes Lightning's module on schedule: `Trainer(callbacks=[PruningCallback(Zeros(0.8))])`.

    Zeros are held through every step, and the optimizer's momenta are cut with the channels. The trainer's loggers are
    told at each cut, and its checkpoints hold how far it is, so that `fit(ckpt_path=…)` goes on from there. Without
    `example_inputs`, channels are found with the module's `example_input_array`.
    """

    pruner: TrainingPruner | None = field(default=None, init=False, repr=False)
    """What prunes, from the start of the training on: it has the `masks` or the `plan`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._resumed: PruningState | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._resumed = None
        if stage == "fit" and not isinstance(self.cut, Zeros) and not isinstance(pl_module, KeepsCuts):
            raise UsageError(
                f"{type(pl_module).__name__} could not load its checkpoints once it is cut; make KeepsCuts of "
                "secateur.integrations.lightning its first base."
            )

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if STATE_KEY in checkpoint:
            self._resumed = PruningState.from_dict(checkpoint[STATE_KEY])

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        resumed = self._resumed
        if resumed is None and trainer.ckpt_path:
            raise UsageError("The checkpoint says nothing of pruning; load it with load_from_checkpoint, and fit anew.")
        if resumed is None and self.pruner is not None and self.pruner.module is pl_module:
            raise UsageError("This callback has pruned the module in an earlier training; fit it without it.")
        if len(trainer.optimizers) != 1:
            raise UsageError(
                f"The module trains with {len(trainer.optimizers)} optimizers, and the callback follows one; call "
                "secateur.prune_while_training with the one to follow, in on_train_start of the module."
            )
        steps = trainer.estimated_stepping_batches
        if steps == float("inf"):
            raise UsageError("The schedule needs an end of the training; give the Trainer max_epochs or max_steps.")
        if self.example_inputs is None and not isinstance(self.cut, Zeros):
            self.example_inputs = pl_module.example_input_array

        def on_cut(planned: Masks | Plan, step: int) -> None:
            if isinstance(planned, Plan):
                pl_module.pruned_by = followed_by(pl_module.pruned_by, planned)
            for logger in trainer.loggers:
                logger.log_metrics(left_by(planned), step=step)

        self.pruner = self.attach(trainer.strategy.model, trainer.optimizers[0], int(steps), on_cut, resumed)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if self.pruner is not None:
            checkpoint[STATE_KEY] = self.pruner.state.to_dict()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self.pruner is not None:
            self.pruner.release()
            self.pruner.warn_if_early()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.pruner is not None:
            self.pruner.release()
