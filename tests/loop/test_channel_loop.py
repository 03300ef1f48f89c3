"""`prune(channels=…)`: trains, cuts and fine-tunes a copy, and tells what it did."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import secateur
from secateur.bench.size import count_macs
from tests.support.channel_runs import DISTILLED, QUICK, Loaders, assert_same, counts, prune, widths
from tests.support.hardware_reports import save_measured
from tests.support.models import ConvNet, blobs, share_right


@pytest.fixture(scope="module")
def trained() -> ConvNet:
    torch.manual_seed(0)
    data = {"train_data": DataLoader(blobs(), 32, shuffle=True), "eval_data": DataLoader(blobs(128, seed=1), 64)}
    return secateur.train(ConvNet(), 6, recipe=QUICK, progress=False, **data).model


# What it does


def test_it_trains_cuts_and_finetunes(convnet: ConvNet, loaders: Loaders) -> None:
    result = prune(convnet, "50%", train=6, finetune="50%", **loaders)
    assert [record.phase for record in result.records] == ["train"] * 6 + ["cut"] + ["fine-tune"] * 3
    assert widths(result.model) == (4, 16, 4)
    assert result.before > 0.9, "the dense model learnt the task"
    assert result.recovered


def test_the_users_model_stays_as_it_was(convnet: ConvNet, loaders: Loaders) -> None:
    before = copy.deepcopy(convnet.state_dict())
    convnet.norm.eval()
    result = prune(convnet, train=1, **loaders)
    assert widths(convnet) == (8, 32, 4)
    assert all(torch.equal(value, before[name]) for name, value in convnet.state_dict().items())
    assert convnet.training
    assert not convnet.norm.training
    assert type(result.model) is ConvNet
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in result.model.modules())


def test_the_result_tells_sizes_before_and_after(convnet: ConvNet, loaders: Loaders) -> None:
    result = prune(convnet, **loaders)
    assert result.plan is not None
    sizes = tuple(sum(p.numel() for p in model.parameters()) for model in (convnet, result.model))
    assert (result.size_before.parameters, result.size_after.parameters) == result.plan.parameters == sizes
    assert [record.size.parameters for record in result.records] == [sizes[0], sizes[1], sizes[1]]
    assert result.size_after.file_bytes < result.size_before.file_bytes
    assert not result.masks.layers


def test_the_result_prints_sizes_and_verdict(trained: ConvNet, loaders: Loaders) -> None:
    result = prune(trained, finetune=2, **loaders)
    assert result.plan is not None
    lines = str(result).splitlines()
    before, after = result.plan.parameters
    macs = f"MACs of one example {result.plan.macs[0]:,} → {result.plan.macs[1]:,}"
    assert f"{before:,} → {after:,} parameters, {macs}" in lines
    assert lines[-1] == result.verdict
    assert result.verdict.startswith("Recovered")


def test_a_model_that_does_not_recover_is_called_so(trained: ConvNet, loaders: Loaders) -> None:
    result = prune(trained, 0.95, finetune=0, **loaders)
    assert not result.recovered
    assert "DID NOT RECOVER" in str(result)


def test_a_result_is_plain_json_with_its_groups(convnet: ConvNet, loaders: Loaders) -> None:
    stored = json.loads(json.dumps(prune(convnet, **loaders).to_json()))
    assert [(group["name"], group["before"], group["after"]) for group in stored["groups"]] == [
        ("conv", 8, 4),
        ("hidden", 32, 16),
    ]


def test_macs_are_those_of_one_example(convnet: ConvNet, loaders: Loaders) -> None:
    example = torch.zeros(2, 4, 4, 4)
    result = prune(convnet, example_inputs=example, **loaders)
    assert result.plan is not None
    assert result.plan.macs == (count_macs(convnet, example[:1]), count_macs(result.model, example[:1]))


def test_the_metric_is_what_a_plain_loop_counts(convnet: ConvNet, loaders: Loaders) -> None:
    result = prune(convnet, train=2, **loaders)
    assert result.after == share_right(result.model, loaders["eval_data"])


def test_right_after_the_cut_the_model_is_the_one_that_apply_makes(trained: ConvNet, loaders: Loaders) -> None:
    result = prune(trained, finetune=0, **loaders)
    plan = secateur.plan_channels(trained, torch.zeros(2, 4, 4, 4), 0.5)
    assert result.plan is not None
    assert result.plan.tensors == plan.tensors
    expected = secateur.apply(copy.deepcopy(trained), plan).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in result.model.state_dict().items())


def test_the_plan_of_the_result_cuts_another_instance(trained: ConvNet, loaders: Loaders) -> None:
    result = prune(trained, schedule="iterative", cuts=2, **loaders)
    assert result.plan is not None
    other = secateur.apply(ConvNet(), result.plan)
    other.load_state_dict(result.model.state_dict())
    images = next(iter(loaders["eval_data"]))[0]
    assert torch.equal(other.eval()(images), result.model.eval()(images))


@pytest.mark.parametrize(("amount", "cuts"), [(0.3, 5), (0.5, 2), (0.8, 3)])
def test_iterative_cuts_end_with_the_counts_of_one_shot(
    convnet: ConvNet, loaders: Loaders, amount: float, cuts: int
) -> None:
    options = {"finetune": 0, **loaders}
    one_shot = prune(convnet, amount, **options)
    iterative = prune(convnet, amount, schedule="iterative", cuts=cuts, **options)
    assert counts(iterative) == counts(one_shot)
    assert widths(iterative.model) == widths(one_shot.model)


def test_iterative_cuts_recover_in_between(convnet: ConvNet, loaders: Loaders) -> None:
    result = prune(convnet, 0.75, train=2, finetune=3, schedule="iterative", cuts=3, **loaders)
    assert [record.phase for record in result.records[2:]] == ["cut", "fine-tune"] * 3
    sizes = [record.size.parameters for record in result.records if record.phase == "cut"]
    assert sizes == sorted(set(sizes), reverse=True)
    assert widths(result.model) == (2, 8, 4)


def test_iterative_cuts_rank_what_recovery_made_of_the_weights(trained: ConvNet, loaders: Loaders) -> None:
    options = {"finetune": 4, "schedule": "iterative", "cuts": 2, "recipe": secateur.Recipe(lr=0.05), **loaders}
    tuned, untuned = prune(trained, **options), prune(trained, **{**options, "finetune": 0})
    assert tuned.plan is not None
    assert untuned.plan is not None
    assert tuned.plan.tensors != untuned.plan.tensors


def test_iterative_cuts_keep_the_global_scope(trained: ConvNet, loaders: Loaders) -> None:
    """Of the hidden layer, nearly all channels are worthless: it alone has to pay."""
    model = copy.deepcopy(trained)
    with torch.no_grad():
        model.hidden.weight[:28] *= 1e-3
        nn.init.constant_(model.conv.weight, 0.1)
    options = {"scope": "global", "finetune": 0, **loaders}
    one_shot = prune(model, 0.6, **options)
    assert counts(one_shot) == {"hidden": (32, 8)}
    assert counts(prune(model, 0.6, schedule="iterative", cuts=2, **options)) == counts(one_shot)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"keep": ["conv"]}, (8, 16, 4)),
        ({"per_layer": {"hidden": 0.75}}, (4, 8, 4)),
        ({"keep": ["conv"], "channels": 0.3, "multiple_of": 8}, (8, 24, 4)),
        ({"scope": "global", "floor": 0.5, "channels": 0.9}, (4, 16, 4)),
    ],
)
def test_options_of_plan_channels_go_through(
    convnet: ConvNet, loaders: Loaders, options: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    assert widths(prune(convnet, finetune=0, **options, **loaders).model) == expected


def test_iterative_per_layer_amounts_are_met_exactly(convnet: ConvNet, loaders: Loaders) -> None:
    result = prune(convnet, schedule="iterative", cuts=3, per_layer={"hidden": 0.75}, **loaders)
    assert widths(result.model) == (4, 8, 4)


@pytest.mark.parametrize("schedule", ["one-shot", "iterative"])
def test_taylor_scores_get_their_gradients(trained: ConvNet, loaders: Loaders, schedule: str) -> None:
    options = {"schedule": schedule, **loaders}
    result, by_magnitude = prune(trained, score="taylor", **options), prune(trained, **options)
    assert result.plan is not None
    assert by_magnitude.plan is not None
    assert result.plan.score == "taylor"
    assert result.plan.tensors != by_magnitude.plan.tensors
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in result.model.parameters())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", lambda model: torch.optim.Adafactor(model.parameters(), 1e-2)])
def test_any_optimizer_trains_what_is_left(convnet: ConvNet, loaders: Loaders, optimizer: Any) -> None:
    recipe = secateur.Recipe(optimizer=optimizer, distill=0, **({} if callable(optimizer) else {"lr": 0.01}))
    result = prune(convnet, train=2, finetune=2, schedule="iterative", cuts=2, recipe=recipe, **loaders)
    assert widths(result.model) == (4, 16, 4)
    assert result.after > 0.5


def test_the_same_seed_gives_the_same_model(convnet: ConvNet, loaders: Loaders) -> None:
    one, two, other = (prune(convnet, train=1, seed=seed, **loaders) for seed in (3, 3, 4))
    assert_same(one, two)
    assert not torch.equal(one.model.output.weight, other.model.output.weight)


def test_frozen_parts_stay_frozen_and_in_evaluation_mode(trained: ConvNet, loaders: Loaders) -> None:
    model = copy.deepcopy(trained).train()
    model.norm.eval()
    model.conv.requires_grad_(False)
    result = prune(model, **loaders)
    assert result.plan is not None
    kept = torch.from_numpy(result.plan.tensors["conv.weight"].kept[0])
    assert torch.equal(result.model.conv.weight, model.conv.weight[kept])
    assert torch.equal(result.model.norm.running_mean, model.norm.running_mean[kept])
    assert not result.model.conv.weight.requires_grad
    assert not result.model.norm.training


def test_a_pruned_model_can_be_pruned_again_by_weights(trained: ConvNet, loaders: Loaders) -> None:
    cut = prune(trained, **loaders).model
    result = secateur.prune(cut, 0.5, repair=0, finetune=1, recipe=QUICK, progress=False, **loaders)
    assert widths(result.model) == (4, 16, 4)
    assert result.masks.sparsity == pytest.approx(0.5, abs=0.01)


# Once each


def test_a_trained_model_is_planned_once(trained: ConvNet, loaders: Loaders, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def counted(*args: Any, **options: Any) -> secateur.Plan:
        calls.append(args)
        return secateur.plan_channels(*args, **options)

    monkeypatch.setattr("secateur.loop.pruners.plan_channels", counted)
    prune(trained, finetune=1, **loaders)
    assert len(calls) == 1
    prune(trained, channels=None, target="macs=50%", finetune=1, **loaders)
    assert len(calls) == 2
    prune(trained, train=1, finetune=1, **loaders)
    assert len(calls) == 4, "once to see whether it can work, and once with the weights that were trained"


def test_the_model_that_was_cut_is_the_one_handed_back(
    trained: ConvNet, loaders: Loaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secateur.loop.tuner.cut", lambda *_: pytest.fail("it was cut again"))
    result = prune(trained, finetune=1, recipe=DISTILLED, **loaders)
    assert widths(result.model) == (4, 16, 4)
    assert not [name for name in vars(result.model) if "accelerate" in name]
    again = prune(result.model, 0.5, finetune=1, **loaders)
    assert widths(again.model) == (2, 8, 4)


# Example inputs


class Keywords(nn.Module):
    """Takes keyword arguments and returns a dict, as library models do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = ConvNet()

    def forward(self, images: Tensor, scale: Tensor | None = None, labels: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": self.net(images if scale is None else images * scale.view(-1, 1, 1, 1))}


def as_dicts(data: TensorDataset) -> list[dict[str, Tensor]]:
    return [{"images": images, "labels": labels} for images, labels in data]


@pytest.fixture
def dict_loaders() -> Loaders:
    return {
        "train_data": DataLoader(as_dicts(blobs(64)), 16, shuffle=True),
        "eval_data": DataLoader(as_dicts(blobs(64, seed=1)), 32),
    }


def test_one_example_of_a_pair_batch_is_the_example(convnet: ConvNet, loaders: Loaders) -> None:
    plan = prune(convnet, **loaders).plan
    assert plan is not None
    assert plan.output_shapes == ((1, 4),)


def test_dict_batches_are_their_own_example(dict_loaders: Loaders) -> None:
    result = prune(Keywords(), **dict_loaders)
    assert counts(result) == {"net.conv": (8, 4), "net.hidden": (32, 16)}


def test_what_a_loss_of_ones_own_calls_the_model_with_is_the_example(dict_loaders: Loaders) -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = model(batch["images"], scale=torch.ones(len(batch["labels"])))["logits"]
        return nn.functional.cross_entropy(logits, batch["labels"])

    result = prune(Keywords(), loss=loss, **dict_loaders)
    assert counts(result) == {"net.conv": (8, 4), "net.hidden": (32, 16)}
    assert result.plan is not None
    assert set(result.plan.example_inputs) == {"images", "scale"}


@pytest.mark.parametrize(
    "example", [torch.zeros(3, 4, 4, 4), (torch.zeros(3, 4, 4, 4),), {"x": torch.zeros(3, 4, 4, 4)}]
)
def test_an_example_can_be_given(convnet: ConvNet, loaders: Loaders, example: Any) -> None:
    result = prune(convnet, example_inputs=example, **loaders)
    assert result.plan is not None
    assert result.plan.output_shapes == ((3, 4),)


def test_a_loss_that_does_not_call_the_model_needs_an_example(convnet: ConvNet, loaders: Loaders) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        assert isinstance(model, ConvNet)
        return nn.functional.cross_entropy(ConvNet.forward(model, batch[0]), batch[1])

    with pytest.raises(secateur.UsageError, match=r"does not call the model it is given; pass example_inputs"):
        prune(convnet, loss=loss, **loaders)
    given = prune(convnet, loss=loss, example_inputs=torch.zeros(2, 4, 4, 4), **loaders)
    assert widths(given.model) == (4, 16, 4)


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amount": 0.5}, "either an amount of weights or channels"),
        ({"pattern": "2:4"}, "pattern belongs to single weights"),
        ({"include": ["norm"]}, "include belongs to single weights"),
        ({"schedule": "gradual"}, "Channels go in whole cuts"),
        ({"channels": 1.0}, "something has to remain"),
        ({"channels": "half"}, "The amount to prune is 'half'"),
        ({"channels": 0.0}, "too small to remove a single channel"),
        ({"channels": None, "amount": 0.5, "multiple_of": 8}, "multiple_of belongs to channels"),
        ({"channels": None, "amount": 0.5, "floor": 0.2}, "floor belongs to channels"),
        ({"channels": None, "amount": 0.5, "example_inputs": torch.zeros(2, 4, 4, 4)}, "example_inputs belongs to"),
        ({"cuts": 3}, 'cuts belongs to schedule="iterative"'),
        ({"original_epochs": 10}, "original_epochs belongs to a share"),
        ({"channels": None, "target": "macs=0.1%"}, "cannot be reached"),
        ({"keep": ["hiden"]}, "did you mean 'hidden'"),
        ({"per_layer": {"hiden": 0.5}}, "did you mean 'hidden'"),
        ({"keep": ["conv", "hidden"]}, "Nothing in the model can be cut"),
        ({"score": "magnitude"}, "There is no score"),
        ({"score": "batch_norm"}, "There is no score"),
        ({"scope": "everywhere"}, "There is no scope"),
        ({"multiple_of": 0}, "multiple_of is 0"),
        ({"scope": "global", "floor": 2}, "floor is 2"),
        ({"example_inputs": "image"}, "example_inputs is a str"),
        ({"example_inputs": torch.zeros(2, 3, 4, 4)}, "failed on the example inputs"),
        ({"schedule": "iterative", "cuts": 0}, "1 or more"),
    ],
)
def test_a_call_that_cannot_work_fails_before_it_trains(
    convnet: ConvNet, loaders: Loaders, options: dict[str, Any], message: str
) -> None:
    before = copy.deepcopy(convnet.state_dict())

    def never(model: nn.Module, data: Iterable[Any]) -> float:
        pytest.fail("it went as far as measuring")

    with pytest.raises(secateur.UsageError, match=message):
        prune(convnet, **{"channels": 0.5, "train": 1, "metric": never, **loaders, **options})
    assert all(torch.equal(value, before[name]) for name, value in convnet.state_dict().items())


@pytest.mark.parametrize("options", [{}, {"train": 1}, {"schedule": "iterative", "cuts": 2}], ids=str)
def test_only_the_last_cut_is_warned_of(convnet: ConvNet, loaders: Loaders, options: dict[str, Any]) -> None:
    save_measured(8, penalty=3.0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = prune(convnet, 0.35, multiple_of=1, **options, **loaders)
    assert counts(result)["hidden"] == (32, 21)
    (told,) = [str(warning.message) for warning in seen if "will not get faster" in str(warning.message)]
    assert "hidden (32 → 21 channels, about 1.97 × the time)" in told
