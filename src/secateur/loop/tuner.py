"""Training and fine-tuning on accelerate, with the precision, processes and trackers of its `Accelerator`."""

from __future__ import annotations

import math
import operator
import os
import random
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin, get_sampler, prepare_data_loader
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import RNG_STATE_NAME, DistributedType, broadcast_object_list, load, set_seed
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.utils.data import DataLoader

from secateur.base import (
    LossDiverged,
    SecateurError,
    UsageError,
    copy_of_model,
    evaluating,
    found_in_batch,
    found_in_batches,
    full_tensor,
    in_brief,
    named_tensors,
    open_regular,
    replace_file,
    spread_like,
    training,
    uninterrupted,
    unwrap,
)
from secateur.bench import ModelSize, measure_size
from secateur.loop.agenda import Epoch
from secateur.loop.imitation import calls_of, imitation_loss
from secateur.loop.recipe import DISTILLATION, Recipe, finetune_scale, learning_rate_factor, make_optimizer
from secateur.loop.result import Record
from secateur.loop.task import (
    NoLabels,
    Task,
    accuracy,
    calling_as,
    classification_loss,
    count_correct,
    require_loss,
    require_number,
)
from secateur.plans import Masks, Plan
from secateur.surgery import Hold, adopt_config, apply, config_numbers, cut, hold

TAYLOR_BATCHES = 16
DENSE_FILE = "dense.safetensors"

Agreed = TypeVar("Agreed", bound=Masks | Plan)


@contextmanager
def lent_accelerator(accelerator: Accelerator | None, seed: int) -> Iterator[Accelerator]:
    """The user's accelerator or a default one, set so that a resumed run sees the data in the same order."""
    ours = accelerator is None and not AcceleratorState._shared_state
    # accelerators share their accumulation settings: a default of ours would overwrite those of the user's own.
    shared = GradientState._shared_state.get("plugin_kwargs")
    accumulation = dict(shared) if shared and accelerator is None else None
    accelerator = accelerator or Accelerator()
    if int(os.environ.get("WORLD_SIZE", "1")) > accelerator.num_processes:
        raise UsageError(
            "The launcher started several processes, but accelerate joined none of them; pass Accelerator(cpu=True), "
            "or set ACCELERATE_USE_CPU=true."
        )
    if accelerator._models:
        raise UsageError("The accelerator already holds prepared models; pass prune a fresh Accelerator.")
    if accelerator.project_configuration.automatic_checkpoint_naming:
        raise UsageError(
            "automatic_checkpoint_naming puts states where no run finds them; turn it off and use run_dir."
        )
    if accelerator.distributed_type == DistributedType.FSDP and not accelerator.is_fsdp2:
        raise UsageError("Masks need FSDP version 2, which keeps parameters whole; set fsdp_version=2.")
    config = accelerator.dataloader_config
    sampling = config.use_seedable_sampler, config.data_seed
    # The order of epoch n must depend on n and the seed alone, not on how often the program was stopped before it.
    config.use_seedable_sampler, config.data_seed = True, seed
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():  # the user's own random numbers go on as if nothing had happened
            set_seed(seed, device_specific=True)
            yield accelerator
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        config.use_seedable_sampler, config.data_seed = sampling
        accelerator.free_memory()
        if accumulation is not None:
            GradientState().plugin_kwargs.update(accumulation)
        if ours:
            # accelerate keeps the settings of the first accelerator for the life of the process; a default of ours
            # must not stand in the way of one that the user sets up later.
            AcceleratorState._reset_state()


class Tuner:
    """A copy of the model together with the optimizer and data that train it, in all processes of the run."""

    def __init__(self, model: nn.Module, task: Task, recipe: Recipe, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.task = task
        self.recipe = recipe
        self.starts_repaired = False
        """Whether fine-tuning begins with what a repair has left."""
        self.learnt_without_labels = False
        self._distill = recipe.distill or 0.0
        self._teacher: nn.Module | None = None
        self._original = model
        self._hold: Hold | None = None
        # accelerate and `_set_epoch` seed the generator of the user's sampler; `close` puts it back.
        self._generator = _generator_of(task.train_data)
        self._generator_state = self._generator.get_state() if self._generator is not None else None
        plain = _copy_of(model)
        if any(parameter.requires_grad for parameter in plain.parameters()):
            optimizer = make_optimizer(recipe, plain)
            self.model, self.optimizer, self._train_data = accelerator.prepare(plain, optimizer, task.train_data)
        else:
            self.model, self._train_data = accelerator.prepare(plain, task.train_data)
            self.optimizer = None
        self._eval_data = self._evaluation_data()

    @property
    def module(self) -> nn.Module:
        """The model without the wrappers of DDP and mixed precision."""
        return unwrap(self.model)

    @property
    def epoch_batches(self) -> int:
        """Batches of one epoch in each process; 1 where there is nothing to train on, and no epoch."""
        return len(self._train_data) or 1

    def train_epoch(self, epoch: Epoch, on_step: Callable[[float], None], cut: Callable[[float], None]) -> None:
        """Runs one epoch; `cut` is called along the ramp of the gradual schedule, `on_step` after every batch."""
        if self.optimizer is None:
            raise UsageError("Every parameter is frozen, so nothing can be trained; use train=0 and finetune=0.")
        if epoch.phase_start == 0:
            self.optimizer.optimizer.state.clear()  # momentum of another phase points the wrong way
        steps = epoch.phase_batches // self.accelerator.gradient_accumulation_steps
        scale = finetune_scale(self.recipe, self.starts_repaired, steps) if epoch.phase == "fine-tune" else 1.0
        ramp = dict(epoch.ramp)
        self._set_epoch(epoch.number)
        with training(self.model):
            for i, batch in enumerate(self._batches(epoch.batches)):
                if i in ramp:
                    cut(ramp[i])
                factor = scale * learning_rate_factor(self.recipe, epoch.phase_start + i, epoch.phase_batches)
                for group in self.optimizer.param_groups:
                    group["lr"] = group["initial_lr"] * factor
                with self.accelerator.accumulate(self.model):
                    loss = require_loss(self._loss(batch, distill=epoch.phase == "fine-tune"))
                    value = loss.item()
                    if not math.isfinite(value):
                        raise LossDiverged(f"The loss became {value} at batch {i + 1} of {epoch.label}")
                    self.accelerator.backward(loss)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                on_step(value)

    def evaluate(self) -> tuple[float, int]:
        """The metric, and the predictions that it was counted over; 0 for a metric of the user's own."""
        with evaluating(self.model), torch.no_grad():
            if self.task.metric is not accuracy:
                return require_number(self.task.metric(self.model, self._eval_data)), 0
            batches = [self.accelerator.gather_for_metrics(r) for r in count_correct(self.model, self._eval_data)]
        right = torch.cat([batch.flatten() for batch in batches])
        return float(right.double().mean()), right.numel()

    def size(self) -> ModelSize:
        return measure_size(self.module)

    def enforce(self, masks: Masks) -> None:
        """Puts masks in force from here on, in place of any earlier ones."""
        if self._hold is not None:
            self._hold.release()
        apply(self.module, masks)
        self._hold = hold(self.module, masks, self.optimizer) if self.optimizer is not None else None

    def cut(self, plan: Plan) -> None:
        """Removes channels from the model, and from the optimizer's momenta, after whatever was removed before."""
        if self.accelerator.distributed_type == DistributedType.FSDP:
            raise UsageError("Channels cannot be cut while FSDP shards the model; prune it first, or with DDP.")
        module = self.module
        apply(module, plan, optimizer=None if self.optimizer is None else self.optimizer.optimizer)
        if self.model is not module:  # DDP made its buckets for the parameters as they were
            self.accelerator._models.clear()
            self.model = self.accelerator.prepare_model(module)

    def agree(self, plan: Agreed) -> Agreed:
        """The main process's plan or masks, in every process."""
        agreed: list[Agreed] = broadcast_object_list([plan])
        return agreed[0]

    def example_inputs(self) -> tuple[Any, ...] | dict[str, Any]:
        """What the loss gives the model for the first training batch, one example of it where the model takes that."""
        return found_in_batch(self.module, calling_as(self.task.loss), next(iter(self._batches(1))))

    def settle_distillation(self) -> None:
        """Where the recipe leaves it open: that of classifiers. Of other models only those whose data has no labels."""
        if self.recipe.distill is None and self.task.loss is classification_loss:
            classifies = self.task.metric is accuracy
            self._distill = DISTILLATION if classifies else 1.0 if self._lacks_labels() else 0.0

    def _lacks_labels(self) -> bool:
        try:
            with evaluating(self.model), torch.no_grad(), closing(self._batches(1)) as batches:
                for batch in batches:
                    self.task.loss(self.model, batch)
        except NoLabels:
            return True
        return False

    def training_inputs(self, examples: int) -> list[Any]:
        """What the loss gives the model for as many training batches as hold the examples, without labels."""
        self._set_epoch(0)
        with closing(self._batches(self.epoch_batches)) as batches:
            return list(found_in_batches(self.module, calling_as(self.task.loss), batches, examples))

    @contextmanager
    def gradients(self) -> Iterator[None]:
        """Gradients of the loss over some training batches, for scores that need them."""
        self._set_epoch(0)
        with evaluating(self.model):
            for batch in self._batches(min(TAYLOR_BATCHES, self.epoch_batches)):
                self.accelerator.backward(self._loss(batch, distill=False))
        yield
        self.model.zero_grad()

    def remember_dense(self, folder: Path | None, is_dense: bool) -> None:
        """Before the first cut: keeps the dense model to distil from, in `folder` for a resumed run, too."""
        if not self._distill or self._teacher is not None:
            return
        file = folder / DENSE_FILE if folder else None
        kept = file is not None and file.exists()
        if not kept and not is_dense:  # a run that began without distillation goes on without
            if self.recipe.distill:
                raise UsageError(
                    f"The run in {folder} cut the model without distillation, so it has not kept the dense one; go on "
                    "with distill=0, or delete the folder to start anew."
                )
            self._distill = 0.0
            return
        self.accelerator.wait_for_everyone()  # all have looked before one of them writes it
        self._teacher = _copy_of(self._original) if kept else self.plain_copy(None)
        if file is not None and kept:
            _read_dense(file, self._teacher)
        elif file is not None and self.accelerator.is_main_process:
            with replace_file(file) as partial:
                save_model(self._teacher, str(partial))
        self._teacher.to(self.accelerator.device).eval().requires_grad_(False)

    def start_trackers(self) -> None:
        if self.accelerator.log_with and not self.accelerator.trackers:
            self.accelerator.init_trackers("secateur")

    def log(self, step: int, record: Record) -> None:
        """To the trackers that the accelerator was set up with."""
        values = {"metric": record.metric, "sparsity": record.sparsity, "seconds": record.seconds}
        self.accelerator.log({**values, "parameters": record.size.parameters}, step)

    def finished_model(self, plan: Plan | None) -> nn.Module:
        """The model as it is now, as the user's own class, without wrappers, whole in every process."""
        module = self.module
        alone = self.accelerator.distributed_type == DistributedType.NO and self.model is module
        moved = next(module.parameters()).device != next(self._original.parameters()).device
        if moved or not alone or "forward" in vars(module):  # spread, wrapped, or given another forward by accelerate
            return self.plain_copy(plan)
        vars(module).pop("_is_accelerate_prepared", None)
        return module

    def plain_copy(self, plan: Plan | None) -> nn.Module:
        """A copy of the model as it is now; `plan` is what was removed of it."""
        plain = _copy_of(self._original)
        if plan is not None:
            cut(plain, plan)
        trained = self.module
        adopt_config(plain, config_numbers(trained))
        with torch.no_grad():
            for name, parameter in trained.named_parameters():
                plain.get_parameter(name).copy_(full_tensor(parameter))
            own = dict(plain.named_buffers())
            home = next(plain.parameters()).device
            for name, buffer in trained.named_buffers():
                if name in own and own[name].shape == buffer.shape:
                    own[name].copy_(full_tensor(buffer))  # in place, because modules may share it
                else:  # it appeared or grew while the model was running
                    path, _, leaf = name.rpartition(".")
                    plain.get_submodule(path)._buffers[leaf] = full_tensor(buffer).detach().clone().to(home)
        return plain

    def adopt(self, plain: nn.Module) -> None:
        """Takes over the values of a `plain_copy` that has got others."""
        values = named_tensors(plain)
        with uninterrupted(), torch.no_grad():
            for name, tensor in named_tensors(self.module).items():
                tensor.copy_(spread_like(tensor, values[name]))

    def save(self, folder: Path) -> None:
        self.accelerator.save_state(str(folder))

    def load(self, folder: Path) -> None:
        """Everything but the optimizer's settings: those are this call's, so that a rate can be lowered in between."""
        groups = self.optimizer.param_groups if self.optimizer is not None else []
        settings = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        try:
            self.accelerator.load_state(str(folder))
        except Exception as error:  # torch and accelerate raise anything, at length
            raise SecateurError("its model or its optimizer is damaged, or of another run") from error
        _set_random_state(folder / f"{RNG_STATE_NAME}_{self.accelerator.process_index}.pkl")
        for group, own in zip(self.optimizer.param_groups if groups else [], settings, strict=True):
            group.update(own)

    def close(self) -> None:
        if self._hold is not None:
            self._hold.release()
        if self._generator is not None and self._generator_state is not None:
            self._generator.set_state(self._generator_state)

    def _loss(self, batch: Any, distill: bool) -> Tensor:
        with self.accelerator.autocast():
            if self._teacher is None or not distill:
                return self.task.loss(self.model, batch)
            loss: Tensor | None = None
            with calls_of(self.model) as calls, suppress(NoLabels):
                loss = require_loss(self.task.loss(self.model, batch))
            self.learnt_without_labels |= loss is None
            # Where neither a loss nor a metric speaks of classes, outputs may be anything.
            classes = loss is not None or self.task.metric is accuracy
            imitation = imitation_loss(self._teacher, calls, classes, self.recipe.temperature)
            return imitation if loss is None else (1 - self._distill) * loss + self._distill * imitation

    def _batches(self, count: int) -> Generator[Any, None, None]:
        """The first `count` batches. accelerate is told that the last of them ends the epoch, so that gradients still
        accumulating make a step there instead of leaking into whatever comes next."""
        prepared = isinstance(self._train_data, DataLoaderStateMixin)
        try:
            for i, batch in enumerate(islice(self._train_data, count)):
                if prepared and i == count - 1:
                    self._train_data.end_of_dataloader = True
                yield batch
        finally:
            if prepared:
                self._train_data.end()

    def _set_epoch(self, number: int) -> None:
        """Gives epoch `number` its order, also where a sampler draws it from a generator of its own."""
        if not isinstance(self._train_data, DataLoaderStateMixin):
            return
        self._train_data.set_epoch(number)
        if self._generator is not None:
            self._generator.manual_seed(self.accelerator.dataloader_config.data_seed + number)

    def _evaluation_data(self) -> Any:
        if self.task.metric is accuracy or not isinstance(self.task.eval_data, DataLoader):
            return self.accelerator.prepare(self.task.eval_data)
        # A metric of the user's knows nothing of processes: each of them evaluates the whole data.
        return prepare_data_loader(
            self.task.eval_data, self.accelerator.device, num_processes=1, process_index=0, put_on_device=True
        )


def _read_dense(file: Path, model: nn.Module) -> None:
    try:
        open_regular(file).close()
        load_model(model, file)
    except Exception as error:  # whatever a damaged file makes it raise
        raise SecateurError(
            f"{file} cannot be read ({in_brief(error)}); delete {file.parent} to start the run again."
        ) from error


def _set_random_state(file: Path) -> None:
    """Accelerate goes on without a word where it cannot read the file, and the run would end elsewhere."""
    try:
        states = load(file)
        operator.index(states["step"])  # how far gradients have accumulated
        random.setstate(states["random_state"])
        np.random.set_state(states["numpy_random_seed"])
        torch.set_rng_state(states["torch_manual_seed"])
        if torch.cuda.is_available():
            torch.cuda.set_rng_state_all(states["torch_cuda_manual_seed"])
    except Exception as error:  # whatever a damaged file makes them raise
        raise SecateurError(f"{file.name} holds no random state") from error


def _generator_of(data: Any) -> torch.Generator | None:
    generator = getattr(get_sampler(data), "generator", None) if isinstance(data, DataLoader) else None
    return generator if isinstance(generator, torch.Generator) else None


def _copy_of(model: nn.Module) -> nn.Module:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UsageError(f"{name} is a TorchScript module, which cannot be copied; put the nn.Module in its place.")
    return copy_of_model(unwrap(model), ", or use plan_weights and hold in your own training loop")
