"""Sensitivity: every number against a cut made by hand, nothing evaluated twice, and amounts that a plan takes."""

import copy
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import secateur
from secateur import SecateurError, UsageError
from secateur.channels.sensitivity_curves import GroupCurve, Sensitivity
from secateur.examples.small_resnet import SmallResNet
from secateur.loop.task import accuracy
from secateur.pages.sensitivity_page import save_sensitivity_page
from secateur.studies.group_study import sensitivity
from tests.support.models import ConvNet, blobs

IMAGE = torch.randn(2, 4, 4, 4)


@pytest.fixture(scope="module")
def trained() -> ConvNet:
    torch.manual_seed(0)
    data = {"train_data": DataLoader(blobs(), 32, shuffle=True), "eval_data": DataLoader(blobs(128, seed=1), 64)}
    model = secateur.train(ConvNet(), 3, progress=False, **data).model
    assert isinstance(model, ConvNet)
    return model


@pytest.fixture
def data() -> DataLoader:
    return DataLoader(blobs(128, seed=1), 64)


class Counted:
    """An accuracy that counts its calls, and may be interrupted at one of them."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.calls, self.stop_at = 0, stop_at

    def __call__(self, model: nn.Module, loader: Iterable[Any]) -> float:
        self.calls += 1
        if self.calls == self.stop_at:
            raise KeyboardInterrupt
        return accuracy(model, loader)


def test_every_point_is_the_metric_of_that_cut_alone(trained: ConvNet, data: DataLoader) -> None:
    before = copy.deepcopy(trained)
    trained.train()
    found = sensitivity(trained, IMAGE, data, amounts=["25%", 0.5], progress=False)
    assert found.metric == "accuracy"
    assert found.dense == accuracy(copy.deepcopy(trained).eval(), data)
    assert [curve.name for curve in found.groups] == ["conv", "hidden"]
    assert [curve.units for curve in found.groups] == [8, 32]
    assert found["conv"].layers == ("conv", "hidden")
    for curve in found.groups:
        for asked, (share, metric) in zip((0.25, 0.5), curve.points, strict=True):
            plan = secateur.plan_channels(trained, IMAGE, per_layer={curve.name: asked})
            (cut,) = plan.groups
            assert share == (cut.before - cut.after) / cut.before
            assert metric == accuracy(secateur.apply(copy.deepcopy(trained), plan).eval(), data)
    assert trained.training, "the model is as it was"
    for name, tensor in before.state_dict().items():
        assert torch.equal(trained.state_dict()[name], tensor)


def test_with_finetune_every_point_is_the_metric_after_training(trained: ConvNet, data: DataLoader) -> None:
    before = copy.deepcopy(trained.state_dict())
    task = {"train_data": DataLoader(blobs(), 32, shuffle=True), "recipe": secateur.Recipe(lr=0.01)}
    found = sensitivity(trained, IMAGE, data, amounts=[0.5], finetune=2, at_once=1, progress=False, **task)
    training = {"epochs": 2, "eval_data": data, "progress": False, **task}
    assert found.dense == secateur.train(trained, **training).after
    for curve in found.groups:
        plan = secateur.plan_channels(trained, IMAGE, per_layer={curve.key: 0.5})
        cut = secateur.apply(copy.deepcopy(trained), plan)
        assert curve.points[0][1] == secateur.train(cut, **training).after
    assert all(torch.equal(tensor, before[name]) for name, tensor in trained.state_dict().items())


def test_random_evaluations_use_the_same_numbers_and_give_them_back(trained: ConvNet) -> None:
    shuffled = DataLoader(blobs(128, seed=1), 64, shuffle=True)

    def noisy(model: nn.Module, loader: Iterable[Any]) -> float:
        return accuracy(model, ([x + torch.randn_like(x), y] for x, y in loader))

    state = torch.get_rng_state()
    first = sensitivity(trained, IMAGE, shuffled, metric=noisy, amounts=[0.5], progress=False)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(7)
    assert sensitivity(trained, IMAGE, shuffled, metric=noisy, amounts=[0.5], progress=False) == first
    assert first.metric == "noisy"


def test_an_interrupted_call_goes_on_and_nothing_is_evaluated_twice(
    trained: ConvNet, data: DataLoader, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cache.json"
    stopped = Counted(stop_at=4)
    with pytest.raises(KeyboardInterrupt):
        sensitivity(trained, IMAGE, data, metric=stopped, cache=file)
    second = Counted()
    found = sensitivity(trained, IMAGE, data, metric=second, cache=file)
    assert stopped.calls - 1 + second.calls == 1 + 2 * 3
    assert capsys.readouterr().err.splitlines()[-1] == "sensitivity: 4/4 hidden without 75%"
    assert found == sensitivity(trained, IMAGE, data, metric=Counted(), progress=False)
    third = Counted()
    assert sensitivity(trained, IMAGE, data, metric=third, cache=file) == found
    assert third.calls == 0
    assert capsys.readouterr().err == "", "with nothing to do, there is nothing to show"
    more = Counted()
    sensitivity(trained, IMAGE, data, metric=more, amounts=[0.25, 0.9], cache=file, progress=False)
    assert more.calls == 1, "the new amount, and that only where it means other channels"


def test_another_model_or_another_question_uses_no_stored_answers(
    trained: ConvNet, data: DataLoader, tmp_path: Path
) -> None:
    def calls_with(model: nn.Module, loader: DataLoader = data, **options: Any) -> int:
        metric = Counted()
        sensitivity(
            model, IMAGE, loader, metric=metric, amounts=[0.5], cache=tmp_path / "c.json", progress=False, **options
        )
        return metric.calls

    assert calls_with(trained) == 3
    assert calls_with(trained) == 0
    moved = copy.deepcopy(trained)
    moved.norm.running_mean += 1  # a buffer counts as much as a weight
    assert calls_with(moved) == 3
    assert calls_with(trained, score="l2") == 3
    assert calls_with(trained, keep=["conv"]) == 2
    assert calls_with(trained, DataLoader(blobs(64, seed=1), 64)) == 3
    training = {"finetune": 1, "train_data": DataLoader(blobs(64), 32, shuffle=True), "at_once": 1}
    assert calls_with(trained, **training) == 3
    assert calls_with(trained, **training) == 0
    assert calls_with(trained, **{**training, "finetune": 0.5}) == 3
    assert calls_with(trained, **training, recipe=secateur.Recipe(lr=0.1)) == 3
    assert calls_with(trained) == 0, "the answers of others do not push out the first"


def test_amounts_that_round_alike_are_evaluated_once(data: DataLoader) -> None:
    metric = Counted()
    model = ConvNet()
    found = sensitivity(model, IMAGE, data, metric=metric, amounts=[0.01, 0.24, 0.25], keep=["hidden"], progress=False)
    assert [share for share, _ in found["conv"].points] == [0.25]
    assert metric.calls == 2
    with pytest.raises(UsageError, match="too small to remove a single channel"):
        sensitivity(model, IMAGE, data, amounts=[0.001], progress=False)


class OneLayerTwoGroups(nn.Module):
    """`both` makes the channels of two groups, so that its name means both of them."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(64, 24)
        self.first, self.second = nn.Linear(8, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        a, b = torch.relu(self.both(x.flatten(1))).split([self.first.in_features, self.second.in_features], 1)
        return self.first(a) + self.second(b)


class NestedNames(nn.Module):
    """The outer layer's name is the beginning of the inner one's."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 64) / 8)
            self.inner = nn.Linear(8, 12)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.inner(torch.relu(x @ self.weight.T)))

    def __init__(self) -> None:
        super().__init__()
        self.block = self.Block()
        self.output = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.block(x.flatten(1)))


class OneSizeTwoGroups(nn.Module):
    """One number in the code is the width of both layers, so they are cut together."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 12
        self.left, self.right = nn.Linear(64, 12), nn.Linear(64, 12)
        self.first, self.second = nn.Linear(12, 4), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        left, right = (torch.relu(layer(x)).view(-1, self.width) for layer in (self.left, self.right))
        return self.first(left) + self.second(right)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (OneLayerTwoGroups, {"both": (24, "both")}),
        (NestedNames, {"block": (8, "block.weight"), "block.inner": (12, "block.inner")}),
        (OneSizeTwoGroups, {"left": (24, "left")}),
    ],
)
def test_every_group_has_a_name_that_a_plan_takes_for_it_alone(
    build: Callable[[], nn.Module], expected: dict[str, tuple[int, str]], data: DataLoader
) -> None:
    model = build()
    found = sensitivity(model, IMAGE, data, amounts=[0.5], progress=False)
    assert {curve.name: (curve.units, curve.key) for curve in found.groups} == expected
    for curve in found.groups:
        plan = secateur.plan_channels(model, IMAGE, per_layer={curve.key: 0.5})
        assert {group.name for group in plan.groups} <= set(curve.members)
        assert sum(group.before - group.after for group in plan.groups) == curve.units / 2
        assert all(found[member] is curve for member in curve.members)


def test_amounts_go_into_a_plan(data: DataLoader) -> None:
    model, image = SmallResNet((8, 16)), torch.randn(2, 1, 28, 28)
    images = DataLoader([(torch.randn(1, 28, 28), i % 10) for i in range(20)], 20)
    found = sensitivity(
        model, image, images, metric=lambda model, _: float(count(model)), amounts=[0.5], progress=False
    )
    assert found.metric == "metric"
    assert found.amounts(0) == dict.fromkeys(["stem", "blocks.0.conv1", "blocks.1.conv1", "blocks.1.conv2"], 0.0)
    everything = found.amounts(1e9)
    assert set(everything.values()) == {0.5}
    plan = secateur.plan_channels(model, image, per_layer=everything)
    assert {(group.name, group.after / group.before) for group in plan.groups} == {(name, 0.5) for name in everything}


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def curves(**points: list[tuple[float, float]]) -> Sensitivity:
    return Sensitivity(
        "accuracy", 0.9, tuple(GroupCurve(n, f"{n}.weight", (n,), (n,), 100, tuple(p)) for n, p in points.items())
    )


def test_loss_is_monotone_linear_between_amounts_and_steep_beyond() -> None:
    found = curves(conv=[(0.2, 0.92), (0.4, 0.8), (0.6, 0.85), (0.8, 0.5)])
    shares = [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    expected = [0, 0, 0, 0.05, 0.1, 0.1, 0.1, 0.25, 0.4]
    assert [found.loss("conv", share) for share in shares] == pytest.approx(expected)
    beyond = [found.loss("conv", share) for share in (0.8, 0.85, 0.9, 1.0)]
    rise = (beyond[1] - beyond[0]) / 0.05
    assert rise >= 2 * (0.4 - 0.1) / 0.2
    assert beyond == sorted(beyond)
    assert beyond[-1] >= 0.9
    flat = curves(conv=[(0.5, 0.95)])
    assert flat.loss("conv", 0.5) == 0
    assert flat.loss("conv", 0.6) > 0.1, "what was not measured is not taken to be free"


def test_amounts_are_the_largest_that_cost_no_more() -> None:
    found = curves(conv=[(0.25, 0.88), (0.5, 0.8), (0.75, 0.1)], hidden=[(0.5, 0.9)])
    assert found.amounts(0) == {"conv.weight": 0, "hidden.weight": 0.5}
    assert found.amounts(0.02) == pytest.approx({"conv.weight": 0.25, "hidden.weight": 0.5})
    assert found.amounts(0.06) == pytest.approx({"conv.weight": 0.375, "hidden.weight": 0.5})
    assert found.amounts(2) == {"conv.weight": 0.75, "hidden.weight": 0.5}
    for key, amount in found.amounts(0.06).items():
        assert found.loss(key.partition(".")[0], amount) <= 0.06 + 1e-12


def test_questions_that_cannot_be_answered() -> None:
    found = curves(conv=[(0.5, 0.8)], hidden=[(0.5, 0.8)])
    assert "conv" in found
    assert "convv" not in found
    with pytest.raises(UsageError, match=r"There is no group 'hiden'; did you mean 'hidden'\?"):
        found.loss("hiden", 0.5)
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(UsageError, match="share is"):
            found.loss("conv", share)
    for loss in (-1, float("nan"), "1%"):
        with pytest.raises(UsageError, match="max_loss is"):
            found.amounts(loss)


def test_it_is_saved_printed_and_read_again(tmp_path: Path) -> None:
    found = curves(conv=[(0.25, 0.88), (0.5, 0.8)], hidden=[(0.5, 0.9)])
    found.save(tmp_path / "s.json")
    assert Sensitivity.load(tmp_path / "s.json") == found
    assert Sensitivity.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert re.search(r"conv +1 +100 +−25%: 0.8800 +−50%: 0.8000$", str(found), re.MULTILINE)
    assert "0.9000 with nothing removed" in str(found)


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 99},
        {"format": "other"},
        {"dense": "0.9"},
        {"dense": float("nan")},
        {"groups": []},
        {"groups": [{"name": "conv"}]},
        {"points": [[0.5, 0.8], [0.25, 0.9]]},
        {"points": [[0.5, 0.8, 1]]},
        {"points": [[1.5, 0.8]]},
        {"points": []},
        {"units": "many"},
    ],
)
def test_a_damaged_file_is_refused(damage: dict[str, Any], tmp_path: Path) -> None:
    stored = curves(conv=[(0.25, 0.88), (0.5, 0.8)]).to_json()
    for key, value in damage.items():
        if key in stored:
            stored[key] = value
        else:
            stored["groups"][0][key] = value
    with pytest.raises(SecateurError, match="sensitivity"):
        Sensitivity.from_json(stored)


def test_files_that_are_not_there_or_hold_something_else(trained: ConvNet, data: DataLoader, tmp_path: Path) -> None:
    with pytest.raises(SecateurError, match="There is no sensitivity file"):
        Sensitivity.load(tmp_path / "nowhere.json")
    cache = tmp_path / "cache.json"
    wrong_numbers = {"x": {"dense": "a lot", "points": {}}}
    for text in (
        "not JSON",
        "[]",
        '{"format": "secateur-plan", "version": 1}',
        json.dumps({"format": "secateur-sensitivity-cache", "version": 1, "entries": wrong_numbers}),
    ):
        cache.write_text(text)
        with pytest.raises(SecateurError, match="does not hold evaluations that can be read"):
            sensitivity(trained, IMAGE, data, cache=cache)
        assert cache.read_text() == text, "somebody's file stays as it is"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"amounts": []}, "amounts has to hold shares above 0"),
        ({"amounts": [0, 0.5]}, "amounts has to hold shares above 0"),
        ({"amounts": 0.5}, "amounts is 0.5; give several"),
        ({"amounts": [1.5]}, "must be below 1"),
        ({"score": "l3"}, "There is no score 'l3'"),
        ({"keep": ["covn"]}, "did you mean 'conv'"),
        ({"keep": ["conv", "hidden"]}, "No group can be cut"),
        ({"eval_data": []}, "eval_data is empty"),
        ({"eval_data": iter([])}, "eval_data has no length"),
        ({"metric": lambda model, loader: "good"}, "The metric returns a str"),
        ({"metric": lambda model, loader: float("nan")}, "The metric returns nan"),
        ({"model": 3}, "The model is a int"),
        ({"finetune": 0.5}, "finetune needs train_data"),
        ({"finetune": -1, "train_data": [1]}, "finetune is -1"),
    ],
)
def test_calls_that_cannot_work(options: dict[str, Any], sentence: str, data: DataLoader, tmp_path: Path) -> None:
    call = {"model": ConvNet(), "eval_data": data, "progress": False, **options}
    with pytest.raises(UsageError, match=sentence):
        sensitivity(call.pop("model"), IMAGE, call.pop("eval_data"), **call)


def test_the_chart_is_one_page_that_names_the_layers(tmp_path: Path) -> None:
    many = {f"layer{i}": [(0.25, 0.9 - i / 100), (0.5, 0.8 - i / 50)] for i in range(20)}
    save_sensitivity_page(curves(**many), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="http', page)
    assert all(name in page for name in many)
    assert "25 of 100 channels removed (25%)" in page
    looks = re.findall(r'"line":\{"color":"(\S+?)".*?"dash":"(\w+)".*?"symbol":"([\w-]+)"', page)
    assert len(looks) == len(set(looks)) == 20, "no two lines look alike"
