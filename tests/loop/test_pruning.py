"""The whole loop through the public API: what it returns, what it leaves untouched, and how it fails."""

import copy
import itertools
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import secateur
from tests.support.models import ConvNet, blobs, share_right

Loaders = dict[str, DataLoader]
QUICK = secateur.Recipe(lr=3e-3)


def prune(model: nn.Module, amount: Any = 0.8, **options: Any) -> secateur.Result:
    return secateur.prune(model, amount, **{"recipe": QUICK, "progress": False, "repair": 0, "finetune": 1, **options})


def zeros_hold(result: secateur.Result) -> bool:
    return all(
        bool((result.model.get_parameter(name)[layer.pruned()] == 0).all())
        for name, layer in result.masks.layers.items()
    )


def test_train_prune_and_finetune(convnet: ConvNet, loaders: Loaders) -> None:
    before = copy.deepcopy(convnet.state_dict())
    result = prune(convnet, "80%", train=6, finetune="50%", **loaders)
    assert [record.phase for record in result.records] == ["train"] * 6 + ["cut"] + ["fine-tune"] * 3
    assert result.before > 0.9, "the dense model learnt the task"
    assert result.right_after is not None
    assert result.after == result.records[-1].metric
    assert result.recovered == (result.after >= result.before - 0.02)
    assert zeros_hold(result)
    assert result.masks.zeros == round(0.8 * result.masks.weights)
    assert result.size_before.nonzeros - result.size_after.nonzeros == pytest.approx(result.masks.zeros, abs=5)
    assert result.zeros_per_layer["hidden.weight"][1] == 4096
    assert set(result.seconds) == {record.stop for record in result.records}
    for name, value in convnet.state_dict().items():
        assert torch.equal(value, before[name]), "the user's model is as it was"
    assert type(result.model) is ConvNet
    assert list(result.model.state_dict()) == list(before)
    json.dumps(result.to_json())


def test_the_usual_call_works_as_it_is(convnet: ConvNet, loaders: Loaders) -> None:
    result = secateur.prune(convnet, 0.9, repair=0, progress=False, **loaders)
    assert [record.stop for record in result.records] == [
        "before",
        "cut",
        "fine-tune epoch 1/2",
        "fine-tune epoch 2/2",
    ]
    assert "Fine-tuned for 2 epochs by default" in str(result)
    trained = secateur.prune(convnet, 0.9, train=8, repair=0, progress=False, **loaders)
    assert trained.records[-1].epochs == pytest.approx(8 * 1.15, abs=0.07)
    assert "Fine-tuned for 1.2 epochs by default (15% of the 8" in str(trained)
    assert "by default" not in str(prune(convnet, **loaders))


def test_a_result_is_saved_as_a_checkpoint(convnet: ConvNet, loaders: Loaders, tmp_path: Path) -> None:
    for name, result in (("zeros", prune(convnet, **loaders)), ("cut", prune(convnet, None, channels=0.5, **loaders))):
        result.save(tmp_path / name)
        loaded = secateur.load(tmp_path / name, ConvNet)
        for key, value in result.model.state_dict().items():
            assert torch.equal(loaded.state_dict()[key], value)
        told = secateur.read_checkpoint(tmp_path / name)
        assert told.metrics["after"] == result.after
        assert told.plan == result.plan


def test_accuracy_is_what_a_plain_loop_counts(convnet: ConvNet, loaders: Loaders) -> None:
    result = prune(convnet, train=2, **loaders)
    assert result.after == share_right(result.model, loaders["eval_data"])


def test_iterative_cuts_recover_in_between(convnet: ConvNet, loaders: Loaders) -> None:
    result = prune(convnet, 0.9, train=2, finetune=3, schedule="iterative", cuts=3, **loaders)
    assert [record.phase for record in result.records[2:]] == ["cut", "fine-tune"] * 3
    sparsities = [record.sparsity for record in result.records if record.phase == "cut"]
    assert sparsities == sorted(sparsities)
    assert result.masks.zeros == round(0.9 * result.masks.weights)
    assert zeros_hold(result)


def test_gradual_pruning_ramps_up_while_it_trains(convnet: ConvNet, loaders: Loaders) -> None:
    result = prune(convnet, 0.9, train=1, finetune=4, schedule="gradual", **loaders)
    sparsities = [record.sparsity for record in result.records]
    assert sparsities == sorted(sparsities)
    assert 0.3 < sparsities[1] < 0.9
    assert result.right_after is None
    assert result.masks.zeros == round(0.9 * result.masks.weights)
    assert zeros_hold(result)


def test_iterative_per_layer_amounts_are_met_exactly(convnet: ConvNet, loaders: Loaders) -> None:
    result = prune(convnet, 0.5, schedule="iterative", cuts=2, per_layer={"hidden": 0.75}, **loaders)
    assert result.masks.layers["hidden.weight"].zeros == 3072


@pytest.mark.parametrize("options", [{"pattern": "2:4", "amount": None}, {"pattern": "4x1"}, {"scope": "layer"}])
def test_patterns_and_scopes_go_through_the_loop(convnet: ConvNet, loaders: Loaders, options: dict[str, Any]) -> None:
    result = prune(convnet, **options, **loaders)
    assert zeros_hold(result)
    if options.get("pattern") == "2:4":
        secateur.check_pattern(result.model, result.masks)


def test_taylor_scores_get_their_gradients(convnet: ConvNet, loaders: Loaders) -> None:
    result = prune(convnet, score="taylor", schedule="iterative", cuts=2, **loaders)
    assert result.masks.score == "taylor"
    assert result.masks.layers != prune(convnet, schedule="iterative", cuts=2, **loaders).masks.layers
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in result.model.parameters())


def test_the_same_seed_gives_the_same_model(convnet: ConvNet, loaders: Loaders) -> None:
    one, two, other = (prune(convnet, train=1, seed=seed, **loaders) for seed in (3, 3, 4))
    assert one.masks == two.masks
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))
    assert one.masks != other.masks


def test_every_epoch_has_an_order_of_its_own(convnet: ConvNet, loaders: Loaders) -> None:
    seen: list[Tensor] = []

    def watching_loss(model: nn.Module, batch: Any) -> Tensor:
        if model.training:
            seen.append(batch[0].clone())
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    prune(convnet, train=2, finetune=1, loss=watching_loss, **loaders)
    epochs = [torch.cat(seen[start : start + 8]) for start in (0, 8, 16)]
    for a, b in itertools.combinations(epochs, 2):
        assert not torch.equal(a, b)
        assert torch.equal(a.flatten(1).sum(1).sort().values, b.flatten(1).sum(1).sort().values), "the same images"


def test_fine_tuning_starts_without_the_momentum_of_training(convnet: ConvNet, loaders: Loaders) -> None:
    states: list[int] = []

    def watched(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        optimizer.register_step_pre_hook(lambda optimizer, *_: states.append(len(optimizer.state)))
        return optimizer

    prune(convnet, train=2, finetune=1, recipe=secateur.Recipe(optimizer=watched), **loaders)
    assert [i for i, state in enumerate(states) if state == 0] == [0, 16], "the first step of each phase"


def test_each_phase_has_its_own_learning_rates(convnet: ConvNet, loaders: Loaders) -> None:
    rates: list[float] = []

    def watched(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        optimizer.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
        return optimizer

    recipe = secateur.Recipe(optimizer=watched, warmup=0.25, finetune_scale=0.1, lr_schedule="linear")
    prune(convnet, train=2, finetune=1, recipe=recipe, **loaders)
    train, finetune = rates[:16], rates[16:]
    assert max(train) == train[4] == pytest.approx(0.1)
    assert train[:5] == sorted(train[:5])
    assert train[4:] == sorted(train[4:], reverse=True)
    assert max(finetune) == finetune[2] == pytest.approx(0.01)


def test_a_model_that_does_not_recover_is_called_so(convnet: ConvNet, loaders: Loaders) -> None:
    result = prune(convnet, 0.98, train=6, finetune=0, scope="layer", **loaders)
    assert not result.recovered
    assert "DID NOT RECOVER" in str(result)
    assert "Recovered" in str(prune(result.model, 0, finetune=0, **loaders))


def test_training_alone(convnet: ConvNet, loaders: Loaders) -> None:
    result = secateur.train(convnet, 3, recipe=QUICK, progress=False, **loaders)
    assert [record.phase for record in result.records] == ["train"] * 3
    assert "nothing was pruned" in str(result)
    assert "→" not in str(result), "nothing changed that could be told before and after"


class WithLogits(nn.Module):
    """Returns a dict and takes keyword arguments, as transformers models do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = ConvNet()

    def forward(self, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": self.net(images)}


def as_dicts(data: Iterable[Any]) -> list[dict[str, Tensor]]:
    return [{"images": images, "labels": labels} for images, labels in data]


@pytest.mark.parametrize("kind", ["pairs", "dicts"])
def test_distillation_learns_from_the_dense_model(convnet: ConvNet, loaders: Loaders, kind: str) -> None:
    """With labels that are all wrong, only the dense model can teach the pruned one what is right."""
    dense = secateur.train(convnet, 6, recipe=QUICK, progress=False, **loaders).model
    images, labels = blobs().tensors
    wrong = TensorDataset(images, (labels + 1) % 4)
    data: dict[str, Any] = {"train_data": DataLoader(wrong, 32, shuffle=True), "eval_data": loaders["eval_data"]}
    if kind == "dicts":
        wrapped = WithLogits()
        wrapped.net.load_state_dict(dense.state_dict())
        dense = wrapped
        data = {name: DataLoader(as_dicts(loader.dataset), 32, shuffle=True) for name, loader in data.items()}
    taught = prune(dense, 0.8, finetune=8, recipe=secateur.Recipe(lr=1e-2, distill=1.0), **data)
    assert taught.after > 0.9
    assert prune(dense, 0.8, finetune=8, recipe=secateur.Recipe(lr=1e-2, distill=0), **data).after < 0.1
    assert zeros_hold(taught)
    assert not any(module._forward_hooks for module in taught.model.modules())


def test_a_loss_and_a_metric_of_ones_own(convnet: ConvNet, loaders: Loaders) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return (model(batch[0]) - nn.functional.one_hot(batch[1], 4)).square().mean()

    def negative_error(model: nn.Module, data: Iterable[Any]) -> float:
        with torch.no_grad():
            return -sum(float(loss(model, batch)) for batch in data)

    result = prune(convnet, train=3, loss=loss, metric=negative_error, **loaders)
    assert result.before < 0
    assert "negative_error" in str(result)
    assert result.after == pytest.approx(negative_error(result.model.eval(), loaders["eval_data"]))


@pytest.mark.parametrize("settings", [{"mixed_precision": "bf16"}, {"gradient_accumulation_steps": 3}])
def test_an_accelerator_of_ones_own(convnet: ConvNet, loaders: Loaders, settings: dict[str, Any]) -> None:
    result = prune(convnet, train=3, finetune=1.5, accelerator=fresh_accelerator(**settings), **loaders)
    assert zeros_hold(result)
    assert result.before > 0.8
    assert "forward" not in vars(result.model), "no wrapper of mixed precision is left on the model"
    copy.deepcopy(result.model)


@pytest.mark.parametrize("as_list", [False, True])
def test_gradients_do_not_leak_out_of_a_partial_epoch(convnet: ConvNet, loaders: Loaders, as_list: bool) -> None:
    steps = 0

    def counting(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), 0.01)

        def count(*_: Any) -> None:
            nonlocal steps
            steps += 1

        optimizer.register_step_post_hook(count)
        return optimizer

    if as_list:
        loaders = {name: list(loader) for name, loader in loaders.items()}
    recipe = secateur.Recipe(optimizer=counting)
    prune(convnet, finetune=1.5, recipe=recipe, accelerator=fresh_accelerator(gradient_accumulation_steps=3), **loaders)
    # 8 batches: steps after 3, 6 and 8; then half an epoch of 4: steps after 3 and 4. A list has no end to be told of.
    assert steps == (4 if as_list else 5)


def fresh_accelerator(**settings: Any) -> Accelerator:
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return Accelerator(cpu=True, **settings)


@pytest.fixture(autouse=True)
def _forget_accelerators() -> Iterable[None]:
    yield
    fresh_accelerator()


def test_a_default_run_leaves_no_settings_and_no_seed_behind(convnet: ConvNet, loaders: Loaders) -> None:
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    torch.manual_seed(7)
    random.seed(7)
    expected = torch.get_rng_state(), random.getstate()
    prune(convnet, **loaders)
    assert torch.equal(torch.get_rng_state(), expected[0])
    assert random.getstate() == expected[1]
    assert Accelerator(cpu=True, mixed_precision="bf16").mixed_precision == "bf16"


def test_the_users_accelerator_keeps_its_settings(convnet: ConvNet, loaders: Loaders) -> None:
    accelerator = fresh_accelerator(gradient_accumulation_steps=4)
    prune(convnet, **loaders)
    assert accelerator.gradient_accumulation_steps == 4
    prune(convnet, accelerator=accelerator, **loaders)
    config = accelerator.dataloader_config
    assert (config.use_seedable_sampler, config.data_seed) == (False, None)


def test_an_accelerator_that_names_checkpoints_itself_is_refused(
    convnet: ConvNet, loaders: Loaders, tmp_path: Path
) -> None:
    project = ProjectConfiguration(project_dir=str(tmp_path), automatic_checkpoint_naming=True)
    with pytest.raises(secateur.UsageError, match="automatic_checkpoint_naming"):
        prune(convnet, accelerator=fresh_accelerator(project_config=project), **loaders)


def test_buffers_that_appear_or_grow_come_back(loaders: Loaders) -> None:
    class Counting(ConvNet):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("first", None)
            self.register_buffer("seen", torch.zeros(0))
            self.register_buffer("steps", torch.zeros(()))
            self.conv.register_buffer("steps", self.steps)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.first = x.mean().detach() if self.first is None else self.first
                self.seen = torch.cat([self.seen, x.mean().detach().view(1)])
                self.steps += 1
            return super().forward(x)

    model = prune(Counting(), **loaders).model
    assert model.first is not None
    assert len(model.seen) == 8
    assert model.conv.steps is model.steps, "a shared buffer stays shared"
    assert int(model.steps) == 8


def test_trackers_get_every_stop(convnet: ConvNet, loaders: Loaders, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    project = ProjectConfiguration(project_dir=str(tmp_path), logging_dir=str(tmp_path))
    accelerator = fresh_accelerator(log_with="tensorboard", project_config=project)
    result = prune(convnet, train=2, accelerator=accelerator, **loaders)
    accelerator.end_training()
    events = EventAccumulator(str(tmp_path / "secateur"))
    events.Reload()
    assert [event.value for event in events.Scalars("metric")] == pytest.approx([r.metric for r in result.records])
    assert [event.value for event in events.Scalars("sparsity")] == pytest.approx([r.sparsity for r in result.records])


def test_frozen_parts_stay_frozen_and_in_evaluation_mode(convnet: ConvNet, loaders: Loaders) -> None:
    convnet.train()
    convnet.norm.eval()
    convnet.conv.requires_grad_(False)
    result = prune(convnet, **loaders)
    assert torch.equal(result.model.norm.running_mean, convnet.norm.running_mean)
    kept = ~result.masks.layers["conv.weight"].pruned()
    assert torch.equal(result.model.conv.weight[kept], convnet.conv.weight[kept])
    assert result.model.training
    assert not result.model.norm.training


def test_an_entirely_frozen_model_can_be_pruned_but_not_tuned(convnet: ConvNet, loaders: Loaders) -> None:
    convnet.requires_grad_(False)
    assert zeros_hold(prune(convnet, finetune=0, **loaders))
    with pytest.raises(secateur.UsageError, match="frozen"):
        prune(convnet, finetune=1, **loaders)


def test_any_optimizer_can_be_used(convnet: ConvNet, loaders: Loaders) -> None:
    recipe = secateur.Recipe(optimizer=lambda model: torch.optim.RMSprop(model.parameters(), 1e-3, momentum=0.9))
    assert zeros_hold(prune(convnet, recipe=recipe, **loaders))
    assert zeros_hold(prune(convnet, recipe=secateur.Recipe(optimizer="sgd", lr=0.05), **loaders))


class Endless(IterableDataset):
    def __iter__(self) -> Iterable[Any]:
        while True:
            yield torch.zeros(4, 4, 4), 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amount": 1.0}, "something has to remain"),
        ({"amount": "fifty"}, "The amount to prune is 'fifty'"),
        ({"amount": None}, "Say how much to prune"),
        ({"keep": ["fc"]}, "keep names 'fc'"),
        ({"keep": ["hiden"]}, "did you mean 'hidden'"),
        ({"per_layer": {"norm": 0.5}}, "per_layer names 'norm'"),
        ({"pattern": "2:3"}, "fits no layer"),
        ({"pattern": "2:4", "amount": None, "schedule": "iterative"}, "one cut"),
        ({"score": "magnitude"}, "There is no score"),
        ({"score": lambda name, weight: weight}, "not all finite and ≥ 0"),
        ({"score": lambda name, weight: weight.abs().sum()}, "return a tensor of shape"),
        ({"score": "taylor", "schedule": "gradual"}, "passes of its own"),
        ({"schedule": "sometimes"}, "There is no schedule"),
        ({"schedule": "iterative", "cuts": 0}, "1 or more"),
        ({"schedule": "gradual", "finetune": 0}, "prunes while it fine-tunes"),
        ({"finetune": "15%"}, "original_epochs"),
        ({"train": -1}, "0 or more"),
        ({"original_epochs": -90, "finetune": "15%"}, "original_epochs is -90"),
        ({"tolerance": "2%"}, "tolerance is '2%'"),
        ({"seed": -1}, "seed is -1"),
        ({"keep": None}, "keep is None"),
        ({"keep": [nn.Linear(1, 1)]}, "that is no layer of the model"),
        ({"pattern": (2, 4)}, "The pattern"),
        ({"run_dir": "/proc/nowhere"}, "cannot be made a folder"),
        ({"train_data": DataLoader([])}, "train_data is empty"),
        ({"eval_data": DataLoader([])}, "eval_data is empty"),
        ({"train_data": DataLoader(blobs(8), 32, drop_last=True)}, "train_data is empty"),
        ({"train_data": DataLoader(Endless())}, "no length"),
    ],
)
def test_a_call_that_cannot_work_says_so_and_touches_nothing(
    convnet: ConvNet, loaders: Loaders, options: dict[str, Any], message: str
) -> None:
    before = copy.deepcopy(convnet.state_dict())
    with pytest.raises(secateur.UsageError, match=message):
        prune(convnet, **{**loaders, **options})
    for name, value in convnet.state_dict().items():
        assert torch.equal(value, before[name])


def test_broken_models_are_refused(convnet: ConvNet, loaders: Loaders) -> None:
    with pytest.raises(secateur.UsageError, match="no prunable weights"):
        prune(nn.Sequential(nn.LayerNorm(8)), **loaders)
    with pytest.raises(secateur.UsageError, match="no parameters"):
        prune(nn.Sequential(nn.ReLU()), **loaders)
    for bad in (float("nan"), float("inf"), float("-inf")):
        with torch.no_grad():
            convnet.hidden.weight[0, 0] = bad
        with pytest.raises(secateur.UsageError, match=r"hidden\.weight contains NaN or Inf"):
            prune(convnet, **loaders)


def test_processes_that_never_met_are_refused(loaders: dict[str, DataLoader], monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = Accelerator()  # torchrun sets more than this, and yet without a GPU accelerate joins no processes
    with monkeypatch.context() as environment:
        environment.setenv("WORLD_SIZE", "2")
        with pytest.raises(secateur.UsageError, match=r"accelerate joined none of them; pass Accelerator\(cpu=True\)"):
            secateur.prune(ConvNet(), 0.5, repair=0, finetune=1, progress=False, accelerator=accelerator, **loaders)


def test_a_model_that_cannot_be_copied_is_explained(convnet: ConvNet, loaders: Loaders) -> None:
    convnet.cache = convnet.hidden.weight * 2  # a tensor with a graph behind it, as a forward pass may leave
    with pytest.raises(secateur.UsageError, match=r"cannot be copied .* plan_weights and hold"):
        prune(convnet, **loaders)


def test_labels_that_the_logits_do_not_classify_are_refused(convnet: ConvNet, loaders: Loaders) -> None:
    images, labels = blobs(64).tensors
    columns = DataLoader(TensorDataset(images, labels.view(-1, 1)), 32)
    with pytest.raises(secateur.UsageError, match=r"\(32, 4\) do not classify labels of shape \(32, 1\)"):
        prune(convnet, **{**loaders, "eval_data": columns})


def test_a_batch_of_unknown_form_is_explained(convnet: ConvNet) -> None:
    threes = TensorDataset(*blobs().tensors, blobs().tensors[1])
    data = {"train_data": DataLoader(threes, 32), "eval_data": DataLoader(blobs(), 32)}
    with pytest.raises(secateur.UsageError, match="write your own loss and metric"):
        prune(convnet, **data)
