"""The callback in the real Trainer of transformers."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import secateur
from secateur import Channels, UsageError, Zeros
from secateur.integrations.transformers import PruningCallback

STEPS = 8
EXAMPLE = torch.zeros(1, 8)
CHANNELS: dict[str, Any] = {"cut": Channels(0.5), "example_inputs": EXAMPLE}
CUTS = pytest.mark.parametrize("cut", [{"cut": Zeros(0.75)}, CHANNELS], ids=["zeros", "channels"])


@pytest.fixture(autouse=True)
def _accelerate_forgets() -> Iterator[None]:
    """The settings of the first Trainer would hold for the accelerators of later tests."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


class Classifier(nn.Module):
    """The least that the Trainer takes."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.hidden, self.middle, self.output = nn.Linear(8, 32), nn.Linear(32, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.output(self.middle(self.hidden(x).relu()).relu())
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def bert() -> BertForSequenceClassification:
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
        )
    )


def trainer_of(
    folder: Path, callback: TrainerCallback | None, model: nn.Module | None = None, **options: Any
) -> Trainer:
    rows = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    data = [{"x": row, "labels": int(row[0] > 0)} for row in rows]
    if isinstance(model, BertForSequenceClassification):
        data = [{"input_ids": torch.arange(8) + i % 40, "labels": i % 2} for i in range(64)]
    settings: dict[str, Any] = {
        "max_steps": STEPS,
        "learning_rate": 1e-2,
        "weight_decay": 0.1,
        "save_strategy": "no",
        "logging_steps": 2,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "per_device_train_batch_size": 4,
    }
    return Trainer(
        model or Classifier(),
        TrainingArguments(str(folder), **{**settings, **options}),
        train_dataset=data,
        eval_dataset=data,
        callbacks=[callback] if callback else [],
    )


def assert_zero(model: nn.Module, masks: secateur.Masks | None) -> None:
    assert masks is not None
    for name, layer in masks.layers.items():
        assert (model.get_parameter(name)[layer.pruned()] == 0).all(), name


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


class CountsZeros(TrainerCallback):
    """What is zero after every step, as the Trainer shows it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: list[int] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        self.found.append(int((model.get_parameter(self.name) == 0).sum()))


def test_zeros_are_held_through_accumulation_decay_and_mixed_precision_and_logged(tmp_path: Path) -> None:
    pruning = PruningCallback(Zeros(0.75, scope="layer"), schedule="gradual", end=0.5)
    options = {"gradient_accumulation_steps": 2, "bf16": True, "optim": "adamw_torch_fused"}
    trainer = trainer_of(tmp_path, pruning, bert(), **options)
    counter = CountsZeros("bert.encoder.layer.0.intermediate.dense.weight")
    trainer.add_callback(counter)
    trainer.train()
    expected = [round(0.75 * (1 - (1 - (i + 1) / 5) ** 3) * 512) for i in range(5)]
    assert counter.found == [*expected[1:], *[384] * 4]
    assert pruning.pruner is not None
    assert_zero(trainer.model, pruning.pruner.masks)
    told = [(entry["step"], entry["sparsity"]) for entry in trainer.state.log_history if "sparsity" in entry]
    assert told == [(step, pytest.approx(zeros / 512, abs=2e-3)) for step, zeros in enumerate(expected)]
    assert not trainer.optimizer.optimizer._optimizer_step_post_hooks

    trainer.save_model(str(tmp_path / "pruned"))
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "pruned")
    assert_zero(again, pruning.pruner.masks)


def test_channels_are_cut_on_the_way_with_the_optimizer_and_the_schedule_going_on(tmp_path: Path) -> None:
    mlps = Channels(0.5, keep=["bert.embeddings.*", "*attention*", "bert.pooler.dense"])
    inputs = {"input_ids": torch.arange(8)[None]}
    pruning = PruningCallback(mlps, schedule="iterative", cuts=2, start=0.25, end=0.5, example_inputs=inputs)
    trainer = trainer_of(tmp_path, pruning, bert(), bf16=True)
    pruning.log = trainer.log
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert rates == pytest.approx([1e-2 * left / STEPS for left in (7, 5, 3, 1)])
    told = [(entry["step"], entry["parameters"]) for entry in trainer.state.log_history if "parameters" in entry]
    assert [step for step, _ in told] == [2, 4]
    assert told[-1][1] == sum(parameter.numel() for parameter in trainer.model.parameters())
    for parameter in trainer.model.parameters():
        state = trainer.optimizer.state[parameter]
        assert state["exp_avg"].shape == state["exp_avg_sq"].shape == parameter.shape
        assert state["step"] == STEPS, "the moments went on"

    trainer.model.save_pretrained(tmp_path / "pruned")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "pruned")
    assert again.config.intermediate_size == 16
    assert_same(again, trainer.model)


@CUTS
@pytest.mark.parametrize("stop", [2, 5])
def test_a_resumed_training_ends_as_one_that_was_never_stopped(tmp_path: Path, cut: Any, stop: int) -> None:
    when: Any = {"schedule": "iterative", "cuts": 2, "start": 0.5}
    whole = trainer_of(tmp_path / "whole", PruningCallback(**cut, **when))
    whole.train()

    class Stops(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            control.should_save = control.should_training_stop = state.global_step == stop

    stopped = trainer_of(tmp_path / "run", PruningCallback(**cut, **when))
    stopped.add_callback(Stops())
    with pytest.warns(secateur.SecateurWarning, match=f"ended after {stop} steps, before the last cut after 6"):
        stopped.train()

    pruning = PruningCallback(**cut, **when)
    resumed = trainer_of(tmp_path / "run", pruning)
    resumed.train(resume_from_checkpoint=True)
    assert_same(resumed.model, whole.model)
    assert not resumed.model._load_state_dict_pre_hooks, "no trace is left on the model"
    assert pruning.pruner is not None
    secateur.save(resumed.model, pruning.pruner.plan or pruning.pruner.masks or [], tmp_path / "pruned")
    assert_same(secateur.load(tmp_path / "pruned", Classifier), whole.model)


@CUTS
def test_a_checkpoint_from_elsewhere_is_restored_first(tmp_path: Path, cut: Any) -> None:
    trainer_of(tmp_path / "run", PruningCallback(**cut), save_strategy="steps", save_steps=4).train()
    checkpoint = tmp_path / "run" / "checkpoint-4"
    (tmp_path / "run").rename(tmp_path / "moved")
    checkpoint = tmp_path / "moved" / "checkpoint-4"

    pruning = PruningCallback(**cut)
    trainer = trainer_of(tmp_path / "other", pruning)
    with pytest.raises(UsageError, match=r"restore\(model, folder\)"):
        trainer.train(resume_from_checkpoint=str(checkpoint))
    pruning.restore(trainer.model, checkpoint)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert trainer.state.global_step == STEPS
    assert pruning.pruner is not None
    secateur.save(trainer.model, pruning.pruner.plan or pruning.pruner.masks or [], tmp_path / "pruned")


def test_masks_of_another_checkpoint_are_not_put_on_weights_that_lack_their_zeros(tmp_path: Path) -> None:
    for name, callback in (("dense", None), ("pruned", PruningCallback(0.75))):
        trainer_of(tmp_path / name, callback, save_strategy="steps", save_steps=4).train()
    with pytest.raises(UsageError, match="lack the zeros of the masks"):
        trainer_of(tmp_path / "pruned", PruningCallback(0.75)).train(str(tmp_path / "dense" / "checkpoint-4"))


def test_the_best_model_of_a_gradual_training_could_be_a_dense_one(tmp_path: Path) -> None:
    options = {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps", "save_steps": 4}
    trainer = trainer_of(tmp_path, PruningCallback(0.75, schedule="gradual"), eval_steps=4, **options)
    with pytest.raises(UsageError, match="load_best_model_at_end could bring back"):
        trainer.train()
    pruning = PruningCallback(0.75)
    trainer = trainer_of(tmp_path, pruning, eval_steps=4, **options)
    trainer.train()
    assert pruning.pruner is not None
    assert_zero(trainer.model, pruning.pruner.masks)


def test_a_second_training_does_not_cut_again(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, PruningCallback(**CHANNELS))
    trainer.train()
    with pytest.raises(UsageError, match="in an earlier training"):
        trainer.train()
    assert trainer.model.hidden.out_features == 16


def test_after_ctrl_c_release_puts_the_zeros_back(tmp_path: Path) -> None:
    pruning = PruningCallback(0.75)
    trainer = trainer_of(tmp_path, pruning)

    class Interrupts(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **more: Any) -> None:
            hooks = optimizer.optimizer._optimizer_step_post_hooks
            hooks[-1] = self.interrupt
            hooks.move_to_end(-1, last=False)

        def interrupt(self, *args: Any) -> None:
            raise KeyboardInterrupt

    trainer.add_callback(Interrupts())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert pruning.pruner is not None
    pruning.pruner.release()
    assert_zero(trainer.model, pruning.pruner.masks)


def test_without_the_library_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "secateur.integrations.transformers")
    with pytest.raises(UsageError, match=r"for transformers needs transformers: pip install transformers\.$"):
        importlib.import_module("secateur.integrations.transformers")
