"""`PruningCallback` for the Trainer of Hugging Face transformers.

The Trainer loads the weights of a checkpoint before any callback hears of it. A model that was cut while it trained has
to be cut again by then, so the callback waits at the model's own `load_state_dict`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from secateur.base import UsageError, full_tensor, unwrap
from secateur.integrations.pruning_state import STATE_FILE, PruningState
from secateur.integrations.training_pruner import TrainingPruner, cut_as_before, left_by
from secateur.integrations.while_training import TrainingCut
from secateur.plans import Masks, Plan, Zeros
from secateur.surgery import masked_parameters

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint
except ModuleNotFoundError as error:
    raise UsageError(f"The callback for transformers needs {error.name}: pip install transformers.") from error


@dataclass(eq=False)
class PruningCallback(TrainingCut, TrainerCallback):
    """Prunes the Trainer's model on schedule: `Trainer(…, callbacks=[PruningCallback(Zeros(0.8))])`.

    Zeros are held through every step, and the optimizer's momenta are cut with the channels. The Trainer's checkpoints
    hold how far it is, and `train(resume_from_checkpoint=True)` goes on from there.
    """

    log: Callable[[dict[str, float]], object] | None = None
    """What is told at each cut: `trainer.log`, once there is a trainer. By default `state.log_history` gets it."""
    pruner: TrainingPruner | None = field(default=None, init=False, repr=False)
    """What prunes, from the start of the training on: it has the `masks` or the `plan`, and a `release` that puts zeros
    back after a training that failed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._restored: PruningState | None = None
        self._told: list[dict[str, float]] = []
        self._waiting: RemovableHandle | None = None

    def restore(self, model: nn.Module, checkpoint: str | Path) -> None:
        """Before `train(resume_from_checkpoint=…)` with a folder outside of `output_dir`: cuts the model as it was."""
        self._restored = PruningState.load(checkpoint)
        cut_as_before(model, self._restored.plan)

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **more: Any
    ) -> None:
        if not isinstance(self.cut, Zeros) and model is not None:

            def cut_first(module: nn.Module, weights: Mapping[str, Tensor], prefix: str, *rest: Any) -> None:
                if self._restored is None and _differ(module, weights):
                    self._restore_from(args.output_dir, module, weights)

            self._waiting = model.register_load_state_dict_pre_hook(cut_first)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        optimizer: Any = None,
        **more: Any,
    ) -> None:
        if self._waiting is not None:
            self._waiting.remove()
        if args.load_best_model_at_end and not self.cuts_before_training:
            raise UsageError(
                "load_best_model_at_end could bring back a model from before the last cut; turn it off, or cut before "
                'the first step, with the schedule "one-shot" and start=0.'
            )
        resumed = self._resumed(args, state, model) if state.global_step else None
        if resumed is None and self.pruner is not None and self.pruner.module is unwrap(model):
            raise UsageError(
                "This callback has pruned the model in an earlier training; make a new Trainer without it."
            )
        self.pruner = self.attach(
            model, optimizer, state.max_steps, lambda planned, step: self._told.append(left_by(planned)), resumed
        )
        self._tell(state, control)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._tell(state, control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        if self.pruner is not None and state.is_world_process_zero:
            self.pruner.save(_folder(args, state))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        if self.pruner is not None:
            self.pruner.release()
            self.pruner.warn_if_early()

    def _restore_from(self, output_dir: str | None, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        last = get_last_checkpoint(output_dir) if output_dir and Path(output_dir).is_dir() else None
        if last is not None and (Path(last) / STATE_FILE).exists():
            found = PruningState.load(last)
            if found.plan is not None and _fits(found.plan, weights):
                cut_as_before(model, found.plan)
                return
        raise UsageError(
            "The checkpoint was cut in another way than the model; build the model as it was before the training, and "
            "call restore(model, folder) of the callback before train(resume_from_checkpoint=folder)."
        )

    def _resumed(self, args: TrainingArguments, state: TrainerState, model: nn.Module) -> PruningState:
        found, self._restored = self._restored, None
        if found is None:
            folder = _folder(args, state)
            if not (folder / STATE_FILE).exists():
                raise UsageError(
                    f"There is no {folder / STATE_FILE} to go on pruning from; resume from a checkpoint that has one, "
                    "and call restore(model, folder) of the callback first if it is outside of output_dir."
                )
            found = PruningState.load(folder)
        if found.masks is not None and _revived(model, found.masks):
            raise UsageError("The weights that were loaded lack the zeros of the masks; load both from one checkpoint.")
        return found

    def _tell(self, state: TrainerState, control: TrainerControl) -> None:
        told, self._told = self._told, []
        should_log = control.should_log
        for numbers in told:
            if self.log is not None:
                self.log(numbers)
            else:
                state.log_history.append({**numbers, "step": state.global_step})
        control.should_log = should_log  # the Trainer takes any log for that of the loss, which is still to come


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir or "") / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _differ(model: nn.Module, weights: Mapping[str, Tensor]) -> bool:
    own = dict(model.named_parameters(remove_duplicate=False))
    return any(name in own and own[name].shape != weight.shape for name, weight in weights.items())


def _fits(plan: Plan, weights: Mapping[str, Tensor]) -> bool:
    return all(tuple(weights[name].shape) == cut.new_shape for name, cut in plan.tensors.items() if name in weights)


def _revived(model: nn.Module, masks: Masks) -> bool:
    pairs = [(full_tensor(weight.detach()), layer) for weight, layer in masked_parameters(model, masks)]
    return any(bool(weight[layer.pruned().to(weight.device)].any()) for weight, layer in pairs)
