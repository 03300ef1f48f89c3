"""Channels that zeros have emptied go, and the outputs stay as they are: in float64, on every architecture."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

import secateur
from secateur.base.tensor_trees import tensors_in
from secateur.channels.dissection import Dissection, dissect
from tests.architectures import ARCHITECTURES
from tests.architectures.registry import call

CUTTABLE = [name for name, architecture in ARCHITECTURES.items() if architecture.cuttable]
COUNTED = {
    "layer_norm": ("group_norm_single", "convnext_v2", "gmlp"),
    "not a number": ("weight_norm", "weight_norm_hooks"),  # 0 / 0, already before the cut
    "looks at its data": ("transformer_decoder", "moe_top_k", "branch_on_data", "early_exit"),
}
"""Where the emptied channels stay, although nothing depends on them: a norm counts them, or the values are unknown."""


def lifted(inputs: Any) -> Any:
    return tree_map_only(Tensor, lambda x: x.double() if x.is_floating_point() else x, inputs)


def largest_change(before: Any, after: Any) -> float:
    pairs = zip(tensors_in(before), tensors_in(after), strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-300)) for b, a in pairs if b.is_floating_point())


def empty(model: nn.Module, dissection: Dissection, unread: bool) -> None:
    """Zeros in the weights that read some units of each bundle, or in all that make them."""
    tensors, coupling = dict(model.named_parameters(remove_duplicate=False)), dissection.coupling
    for bundle in dissection.bundles:
        for group in bundle.groups if bundle.steps > 1 else ():
            for member in group.members:
                reads = (member.leaf.index, member.axis) in coupling.contracted_leaves
                if member.leaf.kind == "parameter" and reads == unread:
                    rows = coupling.units.resolve(coupling.axes(member.leaf)[member.axis])
                    gone = np.isin(rows, group.units[: len(group) // bundle.steps]).any(0)
                    tensors[member.leaf.name].data.index_fill_(member.axis, torch.from_numpy(np.flatnonzero(gone)), 0)


@pytest.mark.parametrize(("name", "unread"), [(name, i % 2 == 0) for i, name in enumerate(CUTTABLE[::9])])
def test_what_was_emptied_in_some_architectures_goes_and_the_outputs_stay(name: str, unread: bool) -> None:
    remove_emptied(name, unread)


@pytest.mark.zoo
@pytest.mark.parametrize("unread", [False, True], ids=["silent", "unread"])
@pytest.mark.parametrize("name", CUTTABLE)
def test_what_was_emptied_goes_and_the_outputs_stay(name: str, unread: bool) -> None:
    remove_emptied(name, unread)


def remove_emptied(name: str, unread: bool) -> None:
    model, inputs = ARCHITECTURES[name].build().eval().double(), lifted(ARCHITECTURES[name].inputs())
    empty(model, dissect(model, inputs), unread)
    with torch.no_grad():
        before = call(model, inputs)
    try:
        plan = secateur.plan_dead_channels(model, inputs)
    except secateur.NothingToCut:
        assert any(name in names for names in COUNTED.values())
        return
    secateur.apply(model, plan, verify=False)
    with torch.no_grad():
        assert largest_change(before, call(model, inputs)) < 1e-10
    assert plan.parameters[1] < plan.parameters[0]


def gone(plan: secateur.Plan) -> dict[str, int]:
    return {group.name: group.before - group.after for group in plan.groups}


def applied(model: nn.Module, inputs: Tensor) -> tuple[secateur.Plan, float]:
    plan = secateur.plan_dead_channels(model, inputs)
    smaller = secateur.apply(
        copy.deepcopy(model), secateur.Plan.from_json(plan.to_json()), verify=True, example_inputs=inputs
    )
    with torch.no_grad():
        return plan, largest_change(model(inputs), smaller(inputs))


def image() -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()


class Convs(nn.Module):
    """A channel of `first` that its rows do not make is a constant of its norm, for `second`."""

    def __init__(self, padding: int, bias: bool, norm: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 6, 3, padding=padding, bias=bias)
        self.after = nn.BatchNorm2d(6) if norm else nn.Identity()
        self.output = nn.Linear(6, 4)
        for each in (self.norm, self.after) if isinstance(self.after, nn.BatchNorm2d) else (self.norm,):
            nn.init.normal_(each.running_mean)
            nn.init.uniform_(each.running_var, 0.5, 1.5)
        nn.init.constant_(self.norm.bias, 2.0)
        self.first.weight.data[[1, 4]] = 0
        self.norm.bias.data[4] = -9.0  # behind the activation this one is zero
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        y = self.after(self.second(F.relu(self.norm(self.first(x)))))
        return self.output(F.relu(y).mean((2, 3)))


@pytest.mark.parametrize(("bias", "taker"), [(True, "second.bias"), (False, "after.running_mean")])
def test_a_constant_goes_into_a_bias_or_a_running_mean(bias: bool, taker: str) -> None:
    plan, change = applied(Convs(padding=0, bias=bias), image())
    assert gone(plan) == {"first": 2}
    assert plan.folded is not None
    assert list(plan.folded) == [taker]
    assert change < 1e-12
    assert taker in str(plan)


@pytest.mark.parametrize(
    ("model", "reason"),
    [(Convs(padding=1, bias=True), "pads with zeros"), (Convs(padding=0, bias=False, norm=False), "has no bias")],
)
def test_a_constant_that_nothing_can_take_over_stays_with_the_reason(model: nn.Module, reason: str) -> None:
    plan, change = applied(model, image())
    assert gone(plan) == {"first": 1}, "a constant of zero goes all the same"
    assert plan.folded is None
    assert change < 1e-12
    assert any(item.name == "first" and reason in item.reason for item in plan.left_alone)


def test_a_scale_of_zero_makes_a_channel_constant() -> None:
    model = Convs(padding=0, bias=True)
    model.norm.weight.data[2] = 0
    plan, change = applied(model, image())
    assert gone(plan) == {"first": 3}
    assert change < 1e-12


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.branch, self.output = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.output(x + self.branch(x))


def test_a_channel_of_a_residual_stream_is_constant_where_all_that_make_it_are() -> None:
    model, x = Residual(), torch.randn(4, 5).double()
    model.stem.weight.data[3] = 0
    with pytest.raises(secateur.NothingToCut, match="No channel is dead"):
        secateur.plan_dead_channels(model, x)
    model.branch.weight.data[3] = 0
    plan, change = applied(model, x)
    assert gone(plan) == {"stem": 1}
    assert set(plan.folded or ()) == {"branch.bias", "output.bias"}
    assert change < 1e-12


def test_what_only_dead_channels_read_is_dead() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    model[4].weight.data[:, 2] = 0
    model[2].weight.data[:, 5] = 0
    model[2].weight.data[2, 5] = 1.0
    plan, change = applied(model, torch.randn(3, 4).double())
    assert gone(plan) == {"0": 1, "2": 1}
    assert change < 1e-12


class Remembers(nn.Module):
    """`memory` is zero in the first pass only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)
        self.register_buffer("memory", torch.zeros(6))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.second(x * self.memory)
        self.memory.copy_(x.mean(0))
        return y


def test_a_constant_that_another_input_changes_is_none() -> None:
    with pytest.raises(secateur.NothingToCut):
        secateur.plan_dead_channels(Remembers(), torch.randn(3, 4).double())


@pytest.mark.parametrize("seed", range(6))
def test_random_masks_leave_channels_that_can_go(seed: int) -> None:
    torch.manual_seed(seed)
    convs = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=2), nn.BatchNorm2d(16), nn.Tanh()]
    model = nn.Sequential(*convs, nn.Flatten(), nn.Linear(256, 24), nn.ReLU(), nn.Linear(24, 3)).double().eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data *= torch.rand_like(parameter) > (0.95, 0.99)[seed % 2]
    plan, change = applied(model, image())
    assert gone(plan)
    assert change < 1e-10


def test_a_plan_for_other_weights_is_refused() -> None:
    plan = secateur.plan_dead_channels(Convs(padding=0, bias=True), image())
    other = Convs(padding=0, bias=True)
    other.first.weight.data.normal_()
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(secateur.ProofFailed, match="not dead in this model"):
        secateur.apply(other, plan)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())


def test_one_after_the_other_is_one_plan() -> None:
    model = Convs(padding=0, bias=True)
    first = secateur.plan_channels(model, image(), per_layer={"second": 0.5})
    cut = secateur.apply(copy.deepcopy(model), first)
    dead = secateur.plan_dead_channels(cut, image())
    assert torch.equal(secateur.apply(cut, dead)(image()), secateur.apply(model, first.then(dead))(image()))


def test_a_checkpoint_does_not_fold_twice(tmp_path: Any) -> None:
    model = Convs(padding=0, bias=True)
    plan = secateur.plan_dead_channels(model, image())
    secateur.apply(model, plan)
    secateur.save(model, plan, tmp_path / "model")
    loaded = secateur.load(tmp_path / "model", lambda: Convs(padding=0, bias=True))
    assert torch.equal(loaded(image()), model(image()))


def test_kept_layers_keep_their_channels() -> None:
    with pytest.raises(secateur.NothingToCut):
        secateur.plan_dead_channels(Convs(padding=0, bias=True), image(), keep=["first"])
