"""`Zeros`, `Channels` and `Target`: the same cut however it is written, and no option that could have no effect."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any, get_type_hints

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import secateur
from secateur import Channels, Target, Zeros
from secateur.plans import Options
from tests.support.models import ConvNet

IMAGE = torch.zeros(2, 4, 4, 4)
Loaders = dict[str, DataLoader]


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ((0.8, {}), Zeros(0.8)),
        (("80%", {"scope": "layer", "keep": ["conv"]}), Zeros(0.8, scope="layer", keep=("conv",))),
        ((None, {"pattern": "2:4"}), Zeros(pattern="2:4")),
        ((0.5, {"per_layer": {"hidden": "75%"}, "score": "l2"}), Zeros(0.5, per_layer={"hidden": 0.75}, score="l2")),
    ],
)
def test_zeros_are_the_same_written_short_and_long(short: tuple[Any, dict[str, Any]], long: Zeros) -> None:
    torch.manual_seed(0)
    model = ConvNet()
    amount, options = short
    assert secateur.plan_weights(model, amount, **options) == secateur.plan_weights(model, long)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"amount": 0.5}, Channels(0.5)),
        ({"amount": "30%", "multiple_of": 8, "keep": ["conv"]}, Channels(0.3, multiple_of=8, keep=["conv"])),
        ({"amount": 0.9, "scope": "global", "floor": 0.5}, Channels("90%", scope="global", floor=0.5)),
        ({"per_layer": {"hidden": 0.75}, "iterations": 3}, Channels(per_layer={"hidden": 0.75}, iterations=3)),
        ({"target": "macs=50%"}, Target("macs=50%")),
        ({"target": "params=0.6", "scope": "layer", "floor": 0.3}, Target("params=0.6", scope="layer", floor=0.3)),
    ],
)
def test_cuts_of_channels_are_the_same_written_short_and_long(short: dict[str, Any], long: Channels | Target) -> None:
    torch.manual_seed(0)
    model = ConvNet()
    assert secateur.plan_channels(model, IMAGE, **short) == secateur.plan_channels(model, IMAGE, long)


def test_editors_know_the_options_of_all_three() -> None:
    """Where a score may be more for channels than for weights, the wider type counts."""
    told = get_type_hints(Zeros) | get_type_hints(Channels) | get_type_hints(Target)
    assert get_type_hints(Options) == {option: told[option] for option in told.keys() - {"amount", "goal", "_"}}


def test_prune_takes_them_as_well(convnet: ConvNet, loaders: Loaders) -> None:
    def prune(*args: Any, **options: Any) -> secateur.Result:
        return secateur.prune(convnet, *args, repair=0, finetune=0, progress=False, **options, **loaders)

    assert prune(Zeros(0.8, scope="layer")).masks == prune(0.8, scope="layer").masks
    assert prune(Channels(0.3, multiple_of=8)).plan == prune(channels=0.3, multiple_of=8).plan
    assert prune(Target("macs=50%", score="l2")).plan == prune(target="macs=50%", score="l2").plan


def test_what_was_said_is_kept_in_one_form() -> None:
    assert Zeros("90%", keep=["a", "b"], per_layer={"c": "50%"}) == Zeros(0.9, keep=("a", "b"), per_layer={"c": 0.5})
    assert (Zeros(0.5).scope, Channels(0.5).scope, Target("macs=0.5").scope) == ("global", "layer", "global")
    with pytest.raises(FrozenInstanceError):
        Zeros(0.5).amount = 0.6  # type: ignore[misc]


def test_a_part_of_the_way() -> None:
    half = Zeros(0.75, per_layer={"a": 0.36}).at(0.5, "iterative")
    assert half.amount == pytest.approx(0.5)
    assert half.per_layer == pytest.approx({"a": 0.2})
    assert Zeros(0.8).at(0.5, "gradual").amount == pytest.approx(0.8 * (1 - 0.5**3))
    assert Channels(0.75).at(1, "iterative") == Channels(0.75)
    part = Target("macs=25%", score="l2").at(0.5, "iterative")
    assert part.parsed_goal.absolute(100) == pytest.approx(50)
    assert replace(part, goal="macs=25%") == Target("macs=25%", score="l2")


def test_a_later_part_counts_from_the_dense_model() -> None:
    torch.manual_seed(0)
    first = secateur.plan_channels(ConvNet(), IMAGE, target="macs=0.7")
    later = Target("macs=49%").at(1, "iterative", first).parsed_goal
    assert later.value == pytest.approx(0.49 * first.macs[0])
    assert not later.relative
    assert str(later) == "macs=49%"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Zeros(1.0), "something has to remain"),
        (lambda: Zeros("150%"), r"something has to remain\.$"),
        (lambda: Zeros(0.5, scope="all"), "There is no scope 'all'"),
        (lambda: Zeros(0.5, keep="conv"), r"keep=\['classifier'\]"),
        (lambda: Zeros(0.5, include="norm"), r"include=\['classifier'\]"),
        (lambda: Zeros(0.5, per_layer=0.5), "per_layer is 0.5; give a dict"),
        (lambda: Zeros(0.5, per_layer={"a": 2}), "must be below 1"),
        (lambda: Channels(0.5, multiple_of=0), "multiple_of is 0"),
        (lambda: Channels(0.5, multiple_of=True), "multiple_of is True"),
        (lambda: Channels(0.5, scope="global", floor=1), "floor is 1"),
        (lambda: Channels(0.5, floor=0.2), 'floor belongs to scope="global" and to targets'),
        (lambda: Channels(0.5, iterations=0), "iterations is 0"),
        (lambda: Channels(0.5, data=[IMAGE]), 'data belongs to score="activation"'),
        (lambda: Channels(0.5, score="activation", data=IMAGE), "data is a single input"),
        (lambda: Target("latency"), "has no amount"),
        (
            lambda: Target("macs=50%", runtime="openvino"),
            "runtime belongs to a latency; the target macs=50% is counted",
        ),
        (lambda: Target("params=2M", batch=4), "batch belongs to a latency"),
        (lambda: Target("size=4MB", threads=2), "threads belongs to a latency"),
        (lambda: Target("latency=0.5", batch=0), "batch is 0"),
        (lambda: Target("latency=0.5", threads=-1), "threads is -1"),
        (lambda: Target("macs=50%", scope="layer", sensitivity=object()), "sensitivity weighs groups"),
        (lambda: Target("macs=50%", outputs=[0], sensitivity=object()), "sensitivity was measured with every output"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(make: Any, message: str) -> None:
    with pytest.raises(secateur.UsageError, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amount": 0.5, "runtime": "openvino"}, "runtime belongs to targets; channels cannot use it, so leave it out"),
        ({"amount": 0.5, "threads": 2}, "threads belongs to targets"),
        ({"amount": 0.5, "sensitivity": object()}, "sensitivity belongs to targets"),
        ({"amount": 0.5, "include": ["norm"]}, "include belongs to single weights"),
        ({"target": "macs=50%", "iterations": 2}, "iterations belongs to channels; targets cannot use it"),
        ({"target": "macs=50%", "amount": 0.5}, "leave out the amount"),
        ({"amount": 0.5, "multple_of": 8}, "There is no option multple_of for channels; did you mean 'multiple_of'"),
        ({"amount": Channels(0.5), "multiple_of": 8}, r"multiple_of belongs inside Channels\(…\)"),
        ({"amount": Zeros(0.5)}, "hand it to plan_weights"),
    ],
)
def test_an_option_without_effect_is_refused_and_told_where_it_belongs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(secateur.UsageError, match=message):
        secateur.plan_channels(ConvNet(), IMAGE, **options)


def test_zeros_take_no_options_of_channels() -> None:
    with pytest.raises(secateur.UsageError, match="multiple_of belongs to channels and targets; single weights cannot"):
        secateur.plan_weights(ConvNet(), 0.5, multiple_of=8)
    with pytest.raises(secateur.UsageError, match="hand it to plan_channels"):
        secateur.plan_weights(ConvNet(), Target("macs=50%"))


def test_modules_and_numbers_for_channels_go_through_the_loop(convnet: ConvNet, loaders: Loaders) -> None:
    def cut(request: Channels, **options: Any) -> secateur.Plan | None:
        return secateur.prune(convnet, request, repair=0, finetune=0, progress=False, **options, **loaders).plan

    assert cut(Channels(0.5, keep=[convnet.conv])) == cut(Channels(0.5, keep=["conv"]))
    kept = cut(Channels(keep_indices={"conv": [1, 3, 5, 7]}))
    assert kept is not None
    assert kept.tensors["conv.weight"].kept[0].tolist() == [1, 3, 5, 7]
    numbers = torch.arange(8.0).flip(0)
    assert cut(Channels(0.5, score={"conv": numbers})).tensors["conv.weight"].kept[0].tolist() == [0, 1, 2, 3]
    with pytest.raises(secateur.UsageError, match='use schedule="one-shot"'):
        cut(Channels(0.5, score={"conv": numbers}), schedule="iterative")


def test_inputs_that_can_be_read_only_once_are_kept() -> None:
    torch.manual_seed(0)
    model, inputs = ConvNet(), [torch.randn(2, 4, 4, 4) for _ in range(3)]
    once = Channels(0.5, score="activation", data=iter(inputs))
    plans = [secateur.plan_channels(model, IMAGE, once) for _ in range(2)]
    assert plans[0] == plans[1] == secateur.plan_channels(model, IMAGE, 0.5, score="activation", data=inputs)


class TwoHeads(nn.Module):
    """Which pattern of `per_layer` comes first decides."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def test_the_first_pattern_that_fits_counts() -> None:
    model = TwoHeads()
    one = secateur.plan_weights(model, Zeros(0.1, per_layer={"first": 0.5, "*": 0.25}))
    other = secateur.plan_weights(model, Zeros(0.1, per_layer={"*": 0.25, "first": 0.5}))
    assert (one.layers["first.weight"].zeros, other.layers["first.weight"].zeros) == (64, 32)
