"""The callback in the real Trainer of Lightning, under both of its names."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import secateur
from secateur import Channels, UsageError, Zeros
from secateur.integrations.lightning import KeepsCuts, PruningCallback
from tests.support.models import ConvNet, blobs, trained_convnet

STEPS = 8
EXAMPLE = torch.zeros(1, 4, 4, 4)
CUTS = pytest.mark.parametrize("cut", [Zeros(0.8), Channels(0.5)], ids=["zeros", "channels"])


class Body:
    """What is the same for the two packages."""

    model: ConvNet

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return F.cross_entropy(self.model(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], index: int) -> None: ...

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2, weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Plain(Body, LightningModule):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = trained_convnet()
        self.example_input_array = EXAMPLE

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


class Kept(KeepsCuts, Plain):
    pass


def data(examples: int = 256) -> DataLoader[Any]:
    return DataLoader(blobs(examples), 32)


def trainer_of(folder: Path, *callbacks: Callback, trainer: Any = Trainer, **options: Any) -> Trainer:
    settings: dict[str, Any] = {
        "max_steps": STEPS,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return trainer(default_root_dir=folder, callbacks=list(callbacks), **{**settings, **options})


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def assert_zero(model: nn.Module, masks: secateur.Masks | None) -> None:
    assert masks is not None
    for name, layer in masks.layers.items():
        assert (model.get_parameter(name)[layer.pruned()] == 0).all(), name


def test_zeros_are_held_through_accumulation_decay_and_mixed_precision_and_logged(tmp_path: Path) -> None:
    pruning = PruningCallback(Zeros(0.8), schedule="gradual", end=0.5)
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    found = []

    class Counts(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
            found.append(int((pl_module.model.hidden.weight == 0).sum()))

    module = Plain()
    options = {"accumulate_grad_batches": 2, "precision": "bf16-mixed", "max_epochs": 2, "max_steps": -1}
    trainer_of(tmp_path, pruning, Counts(), logger=logger, gradient_clip_val=1.0, **options).fit(module, data())
    assert pruning.pruner is not None
    assert pruning.pruner.masks is not None
    assert_zero(module, pruning.pruner.masks)
    assert pruning.pruner.masks.zeros == round(0.8 * 4512)
    assert found == sorted(found)
    assert found[-1] == pruning.pruner.masks.layers["model.hidden.weight"].zeros
    told = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    column = told[0].split(",").index("sparsity")
    expected = [0.8 * (1 - (1 - (i + 1) / 5) ** 3) for i in range(5)]
    assert [float(row.split(",")[column]) for row in told[1:]] == pytest.approx(expected, abs=1e-3)


def test_channels_are_cut_on_the_way_with_the_optimizer_and_the_schedule_going_on(tmp_path: Path) -> None:
    pruning = PruningCallback(Channels(0.5), schedule="iterative", cuts=2, start=0.25, end=0.5)
    module = Kept()
    trainer = trainer_of(tmp_path, pruning)
    trainer.fit(module, data())
    assert module.model.conv.out_channels == 4
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0
    for parameter in module.parameters():
        state = trainer.optimizers[0].state[parameter]
        assert state["exp_avg"].shape == parameter.shape
        assert state["step"] == STEPS, "the moments went on"
    assert pruning.pruner is not None
    assert pruning.pruner.plan == module.pruned_by
    assert not trainer.optimizers[0]._optimizer_step_post_hooks
    secateur.save(module, module.pruned_by or [], tmp_path / "pruned")
    assert_same(secateur.load(tmp_path / "pruned", Plain), module)


@CUTS
@pytest.mark.parametrize("stop", [2, 5])
def test_a_resumed_training_ends_as_one_that_was_never_stopped(tmp_path: Path, cut: Any, stop: int) -> None:
    when: Any = {"schedule": "iterative", "cuts": 2, "start": 0.5}
    same = data(32)  # in every step, because Lightning begins an epoch anew
    whole = Kept()
    trainer_of(tmp_path, PruningCallback(cut, **when)).fit(whole, same)

    saved = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=stop, save_top_k=-1)
    trainer_of(tmp_path, PruningCallback(cut, **when), saved, enable_checkpointing=True).fit(Kept(), same)

    pruning, module = PruningCallback(cut, **when), Kept()
    checkpoint = tmp_path / f"step={stop}.ckpt"
    trainer_of(tmp_path, pruning).fit(module, same, ckpt_path=str(checkpoint))
    assert_same(module, whole)
    assert pruning.pruner is not None
    assert (pruning.pruner.plan or pruning.pruner.masks) is not None


@pytest.mark.parametrize("weights_only", [False, True])
def test_load_from_checkpoint_takes_a_module_that_was_cut_while_it_trained(tmp_path: Path, weights_only: bool) -> None:
    module = Kept()
    trainer = trainer_of(tmp_path, PruningCallback(Channels(0.5), start=0.5))
    trainer.fit(module, data())
    trainer.save_checkpoint(tmp_path / "module.ckpt", weights_only=weights_only)
    again = Kept.load_from_checkpoint(tmp_path / "module.ckpt", weights_only=True)
    assert again.model.conv.out_channels == 4
    assert_same(again, module)
    assert again.pruned_by == module.pruned_by

    trainer = trainer_of(tmp_path)
    trainer.fit(again, data())
    trainer.save_checkpoint(tmp_path / "tuned.ckpt")
    assert_same(Kept.load_from_checkpoint(tmp_path / "tuned.ckpt"), again)


def test_load_from_checkpoint_takes_a_module_that_was_cut_by_hand_and_then_on_the_way(tmp_path: Path) -> None:
    module = Kept()
    module.pruned_by = secateur.plan_channels(module, EXAMPLE, 0.25)
    secateur.apply(module, module.pruned_by)
    trainer = trainer_of(tmp_path, PruningCallback(Channels(0.5)))
    trainer.fit(module, data())
    trainer.save_checkpoint(tmp_path / "module.ckpt")
    again = Kept.load_from_checkpoint(tmp_path / "module.ckpt")
    assert again.model.conv.out_channels == 3
    assert_same(again, module)


@pytest.mark.parametrize("damage", ["{}", '{"format": "secateur-plan", "version": 99}', "[" * 100_000, 7])
def test_a_damaged_plan_in_a_checkpoint_is_refused_and_changes_nothing(damage: Any) -> None:
    module = Kept()
    with pytest.raises(secateur.SecateurError):
        module.on_load_checkpoint({"secateur_plan": damage})
    assert module.model.conv.out_channels == 8


def test_a_checkpoint_of_an_unpruned_training_is_tested_but_not_gone_on_from(tmp_path: Path) -> None:
    module = Kept()
    trainer = trainer_of(tmp_path, max_steps=2)
    trainer.fit(module, data(32))
    trainer.save_checkpoint(tmp_path / "dense.ckpt")
    pruned = trainer_of(tmp_path, PruningCallback(Zeros(0.8)))
    pruned.validate(module, data(32), ckpt_path=str(tmp_path / "dense.ckpt"), verbose=False)
    with pytest.raises(UsageError, match="says nothing of pruning"):
        pruned.fit(module, data(32), ckpt_path=str(tmp_path / "dense.ckpt"))


def test_the_other_package_takes_the_callback_as_well(tmp_path: Path) -> None:
    other = pytest.importorskip("pytorch_lightning")

    class Module(KeepsCuts, Body, other.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = trained_convnet()

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x)

    module = Module()
    trainer = trainer_of(tmp_path, PruningCallback(Channels(0.5), example_inputs=EXAMPLE), trainer=other.Trainer)
    trainer.fit(module, data())
    trainer.save_checkpoint(tmp_path / "module.ckpt")
    assert_same(Module.load_from_checkpoint(tmp_path / "module.ckpt"), module)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_training_that_fails_leaves_the_zeros_and_no_hook(tmp_path: Path, error: type[BaseException]) -> None:
    pruning, module = PruningCallback(Zeros(0.8)), Plain()

    class Interrupts(Callback):
        def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            if trainer.global_step == 3:
                pl_module.model.hidden.weight.data += 1  # as a step that was broken off leaves it
                raise error

    trainer = trainer_of(tmp_path, pruning, Interrupts())
    with pytest.raises((error, SystemExit)):
        trainer.fit(module, data())
    assert pruning.pruner is not None
    assert_zero(module, pruning.pruner.masks)
    assert not trainer.optimizers[0]._optimizer_step_post_hooks


def test_what_cannot_work_is_refused_before_the_first_step(tmp_path: Path) -> None:
    class TwoOptimizers(Plain):
        automatic_optimization = False

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.parameters(), 0.1), torch.optim.SGD(self.parameters(), 0.1)]

    class NoExample(Kept):
        def __init__(self) -> None:
            super().__init__()
            self.example_input_array = None

    refused: list[tuple[Any, Any, str]] = [
        (Plain(), Channels(0.5), "Plain could not load its checkpoints once it is cut; make KeepsCuts"),
        (TwoOptimizers(), Zeros(0.8), "trains with 2 optimizers"),
        (NoExample(), Channels(0.5), "give example_inputs"),
    ]
    for module, cut, sentence in refused:
        with pytest.raises(UsageError, match=sentence):
            trainer_of(tmp_path, PruningCallback(cut)).fit(module, data())
        assert_same(module.model, trained_convnet())
    with pytest.raises(UsageError, match="give the Trainer max_epochs or max_steps"):
        trainer_of(tmp_path, PruningCallback(0.8), max_steps=-1, max_epochs=-1).fit(Plain(), data())


@pytest.fixture
def ddp() -> Iterator[Callable[[], DDPStrategy]]:
    """Lightning leaves its process group, and the variables for it, behind."""
    before = dict(os.environ)
    yield lambda: DDPStrategy(process_group_backend="gloo")
    os.environ.clear()
    os.environ.update(before)
    torch.distributed.destroy_process_group()


def test_zeros_are_held_under_ddp_where_channels_are_refused(tmp_path: Path, ddp: Callable[[], DDPStrategy]) -> None:
    pruning, module = PruningCallback(Zeros(0.8)), Kept()
    with pytest.raises(UsageError, match="while several processes train the model"):
        trainer_of(tmp_path, PruningCallback(Channels(0.5)), strategy=ddp(), devices=1).fit(module, data())
    trainer_of(tmp_path, pruning, strategy=ddp(), devices=1).fit(module, data())
    assert pruning.pruner is not None
    assert_zero(module, pruning.pruner.masks)


def test_a_second_training_does_not_cut_again(tmp_path: Path) -> None:
    pruning, module = PruningCallback(Channels(0.5)), Kept()
    trainer_of(tmp_path, pruning).fit(module, data())
    with pytest.raises(UsageError, match="in an earlier training"):
        trainer_of(tmp_path, pruning).fit(module, data())
    assert module.model.conv.out_channels == 4


def test_without_the_library_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "secateur.integrations.lightning")
    with pytest.raises(UsageError, match=r"needs lightning: pip install lightning\.$"):
        importlib.import_module("secateur.integrations.lightning")
    assert lightning is not None
