"""What comes along with a cut, what people read of a plan, and inputs and outputs of every form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed.fsdp
from torch import Tensor, nn
from torch.nn import functional as F

import secateur
from secateur.base.inputs import with_batch
from secateur.bench.size import count_macs
from secateur.channels.select import NothingToCut
from tests.architectures import ARCHITECTURES
from tests.architectures.registry import call
from tests.support.chains import after, chain, cut_copy, image, mlp, rows

# What else comes along


def test_tied_weights_stay_tied() -> None:
    architecture = ARCHITECTURES["tied_embeddings"]
    model = architecture.build()
    cut = cut_copy(model, secateur.plan_channels(model, architecture.inputs(), 0.5))
    assert cut.lm_head.weight is cut.embed.weight
    assert cut.embed.weight.shape == (50, 16)


def test_frozen_layers_are_cut_as_well() -> None:
    model = chain()
    model.first.requires_grad_(False)
    plan = secateur.plan_channels(model, image(), 0.5)
    assert after(plan) == {"first": 8}
    assert [p.requires_grad for p in cut_copy(model, plan).first.parameters()] == [False, False]


@pytest.mark.parametrize("name", ["resnet_basic", "swiglu", "output_dict", "unet"])
def test_the_output_layer_is_never_cut(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model, inputs = architecture.build(), architecture.inputs()
    plan = secateur.plan_channels(model, inputs, 0.9)
    outputs, left = call(model, inputs), call(cut_copy(model, plan), inputs)
    assert shapes(outputs) == shapes(left)


def test_naming_the_output_layer_does_not_cut_it_either() -> None:
    with pytest.raises(NothingToCut, match="'2', which cannot be cut: the model's output keeps its shape"):
        secateur.plan_channels(mlp(8, 20, 5), rows(8), per_layer={"2": 0.5})


def shapes(outputs: Any) -> list[Any]:
    if isinstance(outputs, dict):
        return [shapes(value) for value in outputs.values()]
    return [tuple(outputs.shape)] if isinstance(outputs, Tensor) else [outputs]


@pytest.mark.parametrize(
    "name",
    ["resnet_basic", "resnext", "mobilenet_v2", "densenet", "unet", "swiglu", "attention_fused_matmul"],
)
def test_predicted_sizes_are_those_of_the_cut_model(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model, inputs = architecture.build(), architecture.inputs()
    plan = secateur.plan_channels(model, inputs, 0.4)
    cut = cut_copy(model, plan)
    one = with_batch(inputs, 1)
    assert plan.macs == (count_macs(model, one), count_macs(cut, one))
    assert plan.parameters == tuple(sum(p.numel() for p in each.parameters()) for each in (model, cut))


def test_the_savings_of_a_group_are_those_of_cutting_it_alone() -> None:
    architecture = ARCHITECTURES["resnet_basic"]
    model, inputs = architecture.build(), architecture.inputs()
    for group in secateur.plan_channels(model, inputs, 0.5).groups:
        alone = secateur.plan_channels(model, inputs, per_layer={group.layers[0]: 0.5})
        assert group.parameters == alone.parameters[0] - alone.parameters[1]
        assert group.macs == alone.macs[0] - alone.macs[1]


# What people read


def test_a_plan_prints_a_line_for_each_group_and_for_what_it_leaves_alone() -> None:
    architecture = ARCHITECTURES["hard_coded_sizes"]
    plan = secateur.plan_channels(architecture.build(), architecture.inputs(), 0.5)
    head, sizes, titles, group, *left = str(plan).splitlines()
    assert head == "Plan: 1 group cut, scope layer, score l1"
    assert sizes == "parameters 9,978 → 5,138 (51.5% left), MACs 617,632 → 308,896 (50.0% left)"
    assert titles.split() == ["group", "units", "layers", "it", "couples", "parameters", "MACs"]
    assert group.split() == ["stem.0", "16", "→", "8", "channels", "stem.0,", "conv.0", "−4,840", "−308,736"]
    assert left == [
        "left alone: conv.0: its size is a literal in the code (`view`)",
        "left alone: fc: the model's output keeps its shape",
    ]


def test_heads_are_called_heads() -> None:
    architecture = ARCHITECTURES["gqa_expand"]
    plan = secateur.plan_channels(architecture.build(), architecture.inputs(), 0.5)
    assert {group.name: group.kind for group in plan.groups}["layers.0.q_proj"] == "heads"


def test_inspect_lists_what_can_be_cut_and_why_the_rest_cannot() -> None:
    architecture = ARCHITECTURES["hard_coded_sizes"]
    model = architecture.build()
    anatomy = secateur.inspect(model, architecture.inputs())
    (group,) = anatomy.groups
    assert (group.name, group.units, group.kind, group.layers) == ("stem.0", 16, "channels", ("stem.0", "conv.0"))
    assert group.parameters == 15 * (3 * 9 + 2 + 64 * 9), "all but one: stem.0, its norm, and the inputs of conv.0"
    assert {item.name: item.reason for item in anatomy.left_alone} == {
        "conv.0": "its size is a literal in the code (`view`)",
        "fc": "the model's output keeps its shape",
    }
    assert anatomy.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert anatomy.macs == count_macs(model, architecture.inputs()[:1])
    assert str(anatomy).startswith("1 group can be cut; 9,978 parameters, 617,632 MACs for one example\n")


class TwoSides(nn.Module):
    """`kept` gives an output; what `other` gives is shaped as `shape` says, with both and the input at hand."""

    def __init__(self, shape: Callable[[TwoSides, Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.shape, self.width = shape, 12
        self.kept, self.other, self.head = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept, other = self.kept(x), self.other(x)
        return kept, self.head(self.shape(self, x, kept, other))


def by_attribute(self: TwoSides, x: Tensor, kept: Tensor, other: Tensor) -> Tensor:
    kept.view(-1, self.width)
    return other.view(-1, self.width)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (lambda self, x, kept, other: other.view(-1, 12), "its size is a literal in the code (`view`)"),
        (lambda self, x, kept, other: other.view(-1, kept.shape[1]), "the model's output '0' keeps its shape"),
        (lambda self, x, kept, other: other.view(-1, x.shape[1]), "its size is that of an axis that stays (`view`)"),
        (by_attribute, "the model's output '0' keeps its shape"),
    ],
    ids=["a literal", "the length of a pinned axis", "the length of an input", "an attribute that a pinned axis needs"],
)
def test_the_reason_is_what_fixes_a_size(shape: Callable[..., Tensor], reason: str) -> None:
    anatomy = secateur.inspect(TwoSides(shape), torch.rand(4, 12))
    assert {item.name: item.reason for item in anatomy.left_alone}["other"] == reason


class ReadsItsLayer(nn.Module):
    """Uses a number by which a layer describes itself."""

    def __init__(self, layer: nn.Module, read: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.stem, self.layer, self.head, self.read = nn.Conv2d(2, 16, 1), layer, nn.Conv2d(16, 3, 1), read

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.read(self.layer, self.layer(self.stem(x))))


def weight_normed() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Conv2d(16, 16, 1))


@pytest.mark.parametrize("make", [lambda: nn.Conv2d(16, 16, 1), weight_normed], ids=["plain", "weight norm"])
def test_a_layer_whose_description_is_read_as_a_number_stays(make: Callable[[], nn.Module]) -> None:
    model = ReadsItsLayer(make(), lambda layer, y: y * layer.out_channels)
    plan = secateur.plan_channels(model, torch.rand(2, 2, 4, 4), 0.5)
    assert "its size is used for something else, too (`mul`)" in " ".join(str(plan).split())
    secateur.apply(model, plan)
    assert (model.layer.in_channels, model.layer.out_channels) == (8, 16)


def test_the_inputs_of_a_grouped_layer_stay_where_their_number_is_read() -> None:
    model = ReadsItsLayer(nn.Conv2d(16, 16, 1, groups=4), lambda layer, y: y / layer.in_channels)
    secateur.apply(model, secateur.plan_channels(model, torch.rand(2, 2, 4, 4), 0.5))
    assert (model.layer.in_channels, model.layer.out_channels) == (16, 8)


def test_a_description_that_is_read_as_a_size_follows() -> None:
    model = ReadsItsLayer(nn.Conv2d(16, 16, 1), lambda layer, y: y.view(-1, layer.out_channels, 4, 4))
    secateur.apply(model, secateur.plan_channels(model, torch.rand(2, 2, 4, 4), 0.5))
    assert model.layer.out_channels == model.head.in_channels == 8


def test_inspect_finds_a_layer_that_the_example_does_not_use() -> None:
    model = chain()
    model.first.spare = nn.Linear(4, 4)
    left_alone = {item.name: item.reason for item in secateur.inspect(model, image()).left_alone}
    assert left_alone["first.spare"] == "the example pass does not use it"


def test_inspect_and_plan_know_the_same_groups() -> None:
    architecture = ARCHITECTURES["resnet_basic"]
    model, inputs = architecture.build(), architecture.inputs()
    anatomy, plan = secateur.inspect(model, inputs), secateur.plan_channels(model, inputs, 0.5)
    assert [(g.name, g.layers, g.units) for g in anatomy.groups] == [(g.name, g.layers, g.before) for g in plan.groups]


# Inputs and outputs of every form


class TwoInputs(nn.Module):
    """`wrap` makes the output what a test wants."""

    def __init__(self, wrap: Callable[[Tensor], Any] = lambda out: out) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 12), nn.Linear(8, 12)
        self.output = nn.Linear(12, 3)
        self.wrap = wrap

    def forward(self, a: Tensor, b: Tensor | None = None) -> Any:
        hidden = self.left(a) if b is None else self.left(a) + self.right(b)
        return self.wrap(self.output(F.relu(hidden)))


def test_arguments_come_as_a_tuple_a_list_or_a_dict() -> None:
    model, (a, b) = TwoInputs(), (rows(8), rows(8) + 1)
    plans = [secateur.plan_channels(model, given, 0.5) for given in ((a, b), [a, b], {"b": b, "a": a})]
    assert plans[0] == plans[1] == plans[2]
    assert after(plans[0]) == {"left": 6}
    assert "right.weight" in plans[0].tensors


def test_a_tensor_is_the_only_argument() -> None:
    model = chain()
    assert secateur.plan_channels(model, image(), 0.5) == secateur.plan_channels(model, (image(),), 0.5)


class Named(NamedTuple):
    logits: Tensor
    loss: Tensor | None


@pytest.mark.parametrize(
    "wrap",
    [
        lambda out: (out, None),
        lambda out: [out, 1.0],
        lambda out: {"logits": out, "loss": None, "more": {"again": (out,)}},
        lambda out: Named(out, None),
    ],
    ids=["tuple", "list", "dict", "named tuple"],
)
def test_outputs_of_any_form_keep_their_shapes(wrap: Callable[[Tensor], Any]) -> None:
    model = TwoInputs(wrap)
    plan = secateur.plan_channels(model, (rows(8), rows(8)), 0.5)
    assert set(plan.output_shapes) == {(4, 3)}
    assert secateur.verify(model, plan).moved


@pytest.mark.parametrize("name", ["output_dict", "output_dataclass"])
def test_library_outputs_keep_their_shapes(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model = architecture.build()
    assert secateur.verify(model, secateur.plan_channels(model, architecture.inputs(), 0.5)).moved


def test_a_compiled_model_is_planned_as_the_model_inside() -> None:
    model = chain()
    compiled = torch.compile(model, backend="eager")
    assert secateur.plan_channels(compiled, image(), 0.5) == secateur.plan_channels(model, image(), 0.5)
