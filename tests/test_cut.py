"""A plan carried out: nothing changes before, then only what it says, all or nothing, and only if it is true."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import secateur
import secateur.cut
from secateur.channel_plan import TensorCut
from secateur.prove import rehearsal
from secateur.prove.verify import ProofFailed
from tests.architectures import ARCHITECTURES
from tests.architectures.registry import call


class Net(nn.Module):
    """Two groups: the channels of `conv` and the features of `hidden`."""

    def __init__(self, width: int = 16, hidden: int = 12) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.hidden = nn.Linear(width, hidden)
        self.output = nn.Linear(hidden, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.output(F.relu(self.hidden(x)))


class Heads(nn.Module):
    """Attention whose sizes are attributes that its forward pass reads."""

    def __init__(self, dim: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (
            f(x).view(b, n, self.heads, self.head_dim).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return self.output(y.transpose(1, 2).reshape(b, n, self.heads * self.head_dim))


def image(batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def sequence() -> Tensor:
    return torch.randn(2, 7, 24, generator=torch.Generator().manual_seed(0))


def net() -> Net:
    """With statistics and scales of its own for every channel."""
    model = Net()
    nn.init.normal_(model.norm.weight)
    nn.init.normal_(model.norm.bias)
    nn.init.normal_(model.norm.running_mean)
    nn.init.uniform_(model.norm.running_var, 0.5, 1.5)
    return model.eval()


def backward(model: nn.Module) -> None:
    model(image()).square().mean().backward()


def described(value: Any) -> Any:
    """Something that is equal only for the very same object with the very same contents."""
    if isinstance(value, Tensor):
        data = value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return (
            id(value),
            value.dtype,
            tuple(value.shape),
            value.requires_grad,
            data,
            described(value.grad if value.is_leaf else None),
        )
    if isinstance(value, dict):
        return {key: described(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value), [described(item) for item in value]
    if dataclasses.is_dataclass(value):
        return id(value), described(vars(value))
    return type(value), value if isinstance(value, int | float | str) else id(value)


def everything(model: nn.Module) -> dict[str, Any]:
    """Every attribute, parameter, buffer, gradient, hook and flag of every module."""
    return {
        path: {key: described(dict(item) if key.endswith("hooks") else item) for key, item in vars(module).items()}
        for path, module in model.named_modules()
    }


def states(optimizer: torch.optim.Optimizer) -> Any:
    return [described(list(optimizer.state.keys())), described(list(optimizer.state.values()))]


def random_states() -> Any:
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_values(model: nn.Module, expected: dict[str, Tensor]) -> None:
    found = model.state_dict()
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def selected(tensor: Tensor, cut: TensorCut) -> Tensor:
    for axis, kept in cut.kept.items():
        tensor = tensor.index_select(axis, torch.from_numpy(kept))
    return tensor


# Planning changes nothing


@dataclasses.dataclass
class Sizes:
    dim: int = 16
    heads: int = 2


class Busy(nn.Module):
    """Does to itself, in every pass, all that a forward pass may do."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = Sizes()
        self.shape = (2, 8)
        self.conv = nn.Conv2d(3, self.sizes.dim, 3, padding=1)
        self.norm = nn.BatchNorm2d(self.sizes.dim)
        self.drop = nn.Dropout(0.5)
        self.output = nn.Linear(self.sizes.dim, 5)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("last", torch.zeros(1))
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.passes += 1
        self.last = x.mean().view(1)
        self.cache = self.norm(self.conv(x)) + random.random() + np.random.rand()
        x = self.drop(F.relu(self.cache)).view(x.shape[0], self.sizes.heads, self.sizes.dim // 2, -1).mean(-1)
        x = x.reshape(x.shape[0], self.sizes.dim) + torch.randn(1)
        return self.output(x)


def busy() -> Busy:
    model = Busy().train()
    model.norm.eval()
    model.conv.requires_grad_(False)
    model.output.register_forward_hook(lambda *_: None)
    model(image()).sum().backward()
    return model


@pytest.mark.parametrize(
    "work",
    [
        lambda model: secateur.inspect(model, image()),
        lambda model: secateur.plan_channels(model, image(), 0.5),
        lambda model: secateur.plan_channels(model, image(), 0.5, scope="global", iterations=2, score="random"),
        lambda model: secateur.plan_channels(model, image(), 0.5, score="activation"),
    ],
    ids=["inspect", "plan", "iterations", "activation"],
)
def test_planning_changes_nothing_in_the_model(work: Callable[[nn.Module], Any]) -> None:
    model = busy()
    before = everything(model)
    work(model)
    assert everything(model) == before


def test_planning_draws_no_random_numbers() -> None:
    model = busy()
    before = random_states()
    plan = secateur.plan_channels(model, image(), 0.5)
    secateur.apply(model, plan, verify=False)
    assert random_states() == before


def test_proving_draws_no_random_numbers_and_changes_nothing() -> None:
    model = net().train()
    backward(model)
    plan = secateur.plan_channels(model, image(), 0.5)
    before, numbers = everything(model), random_states()
    secateur.verify(model, plan)
    rehearsal.rehearse(model, plan)
    assert everything(model) == before
    assert random_states() == numbers


def test_planning_keeps_the_batch_statistics_of_a_model_with_unused_layers() -> None:
    """Those are looked for in a second pass, in training mode."""
    model = net()
    model.unused = nn.Linear(3, 3)
    before = everything(model)
    secateur.plan_channels(model, image(), 0.5)
    assert everything(model) == before


def test_a_pass_with_gradients_enabled_is_not_started_by_planning() -> None:
    seen: list[bool] = []
    model = net()
    model.hidden.register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    secateur.plan_channels(model, image(), 0.5)
    assert torch.is_grad_enabled()
    assert seen
    assert not any(seen)


class WritesToItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 12)
        self.output = nn.Linear(12, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.embed(ids.add_(1).remainder_(50)))


def test_planning_keeps_inputs_that_the_model_writes_to() -> None:
    ids = torch.arange(10)
    secateur.plan_channels(WritesToItsInput(), ids, 0.5)
    assert torch.equal(ids, torch.arange(10))


def test_a_model_that_writes_to_its_input_is_proven() -> None:
    model = WritesToItsInput()
    assert secateur.verify(model, secateur.plan_channels(model, torch.arange(10), 0.5)).moved


# What a cut leaves as it was


def test_parameters_and_buffers_stay_the_same_objects() -> None:
    model = net()
    before = {name: id(tensor) for name, tensor in secateur.cut.named_tensors(model).items()}
    secateur.apply(model, secateur.plan_channels(model, image(), 0.5))
    assert {name: id(tensor) for name, tensor in secateur.cut.named_tensors(model).items()} == before


def test_the_cut_values_are_the_kept_ones_and_all_others_are_untouched() -> None:
    model = net()
    before = values(model)
    plan = secateur.plan_channels(model, image(), 0.5)
    secateur.apply(model, plan)
    assert_same_values(
        model, {n: selected(old, plan.tensors[n]) if n in plan.tensors else old for n, old in before.items()}
    )
    assert "output.bias" not in plan.tensors


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types_and_frozen_flags_are_kept(dtype: torch.dtype) -> None:
    model = net().to(dtype)
    model.conv.requires_grad_(False)
    flags = [parameter.requires_grad for parameter in model.parameters()]
    secateur.apply(model, secateur.plan_channels(model, image().to(dtype), 0.5))
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert model(image().to(dtype)).shape == (2, 5)


def test_gradients_are_cut_along() -> None:
    model = net()
    backward(model)
    before = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    plan = secateur.plan_channels(model, image(), 0.5)
    secateur.apply(model, plan)
    for name, parameter in model.named_parameters():
        old = before[name]
        assert torch.equal(parameter.grad, selected(old, plan.tensors[name]) if name in plan.tensors else old), name


def test_mixed_training_flags_are_kept() -> None:
    model = net().train()
    model.norm.eval()
    secateur.apply(model, secateur.plan_channels(model, image(), 0.5))
    assert [module.training for module in model.modules()] == [True, True, False, True, True]


def test_hooks_are_kept_and_fire() -> None:
    model, widths = net(), []
    model.hidden.register_forward_hook(lambda module, args, out: widths.append(out.shape[1]))
    secateur.apply(model, secateur.plan_channels(model, image(), 0.5), verify=False)
    widths.clear()
    model(image())
    assert widths == [6]


def test_tied_weights_stay_one_object() -> None:
    architecture = ARCHITECTURES["llama"]
    model = architecture.build()
    secateur.apply(model, secateur.plan_channels(model, architecture.inputs(), 0.5))
    assert model.lm_head.weight is model.embed.weight
    assert model(architecture.inputs()).shape == (2, 12, 50)


def test_sizes_in_attributes_are_plain_ints() -> None:
    model = Heads()
    plan = secateur.plan_channels(model, sequence(), 0.5)
    secateur.apply(model, plan)
    assert {way[0]: new for (_, way), (_, new) in plan.attributes.items()} == {"heads": 2}
    assert (model.heads, model.head_dim) == (2, 6)
    assert type(model.heads) is type(model.head_dim) is int


def test_layers_describe_themselves_truly() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.GroupNorm(4, 16),
        nn.PReLU(16),
        nn.ConvTranspose2d(16, 24, 3),
        nn.InstanceNorm2d(24, affine=True),
        nn.Conv2d(24, 24, 3, groups=24),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 12),
        nn.LayerNorm(12),
        nn.Linear(12, 5),
    ).eval()
    secateur.apply(model, secateur.plan_channels(model, image(), 0.5))
    conv, group, prelu, transposed, instance, depthwise, *_, linear, layer, output = model
    assert (conv.in_channels, conv.out_channels) == (3, 8)
    assert (group.num_channels, prelu.num_parameters, transposed.in_channels, transposed.out_channels) == (8, 8, 8, 12)
    assert 8 % group.num_groups == 0
    assert (instance.num_features, depthwise.groups, depthwise.in_channels, depthwise.out_channels) == (12,) * 4
    assert (linear.in_features, linear.out_features, layer.normalized_shape, output.in_features) == (12, 6, (6,), 6)
    assert all(type(value) is int for value in (conv.out_channels, group.num_channels, depthwise.groups))
    assert type(layer.normalized_shape[0]) is int
    assert "Conv2d(3, 8, kernel_size" in repr(model)


def test_multihead_attention_describes_itself_truly() -> None:
    architecture = ARCHITECTURES["mha_self"]
    model, inputs = architecture.build(), architecture.inputs()
    secateur.apply(model, secateur.plan_channels(model, inputs, 0.5))
    for layer in model.modules():
        if isinstance(layer, nn.MultiheadAttention):
            assert layer.in_proj_weight is None or layer.in_proj_weight.shape[0] == 3 * layer.embed_dim
            assert layer.head_dim * layer.num_heads == layer.embed_dim
            assert all(type(size) is int for size in (layer.num_heads, layer.head_dim, layer.embed_dim))


def test_a_shared_config_changes_only_for_the_modules_that_are_cut() -> None:
    architecture = ARCHITECTURES["shared_config"]
    model = architecture.build()
    first, second = model.blocks
    shared = first.config
    secateur.apply(model, secateur.plan_channels(model, architecture.inputs(), per_layer={"blocks.0.up": 0.5}))
    assert (shared.dim, shared.heads, shared.hidden) == (32, 4, 64), "the object that others may hold is as it was"
    assert second.config is shared
    assert first.config.hidden == first.up.out_features == 32
    assert type(first.config) is type(shared)
    assert all(type(size) is int for size in vars(first.config).values())


# What a cut model can be used for


@pytest.fixture
def cut_net() -> Net:
    model = net()
    return secateur.apply(model, secateur.plan_channels(model, image(), 0.5))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_cut_model_can_be_copied(cut_net: Net, duplicate: Callable[[Net], Net]) -> None:
    assert torch.equal(duplicate(cut_net)(image()), cut_net(image()))


def test_a_cut_model_can_be_saved_whole(cut_net: Net) -> None:
    file = io.BytesIO()
    torch.save(cut_net, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(image()), cut_net(image()))


def test_a_saved_state_takes_no_more_space_than_its_values(cut_net: Net) -> None:
    """A cut that only viewed the old tensors would drag them along."""
    for tensor in secateur.cut.named_tensors(cut_net).values():
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_a_state_goes_into_another_instance_that_was_cut_alike(cut_net: Net) -> None:
    file = io.BytesIO()
    torch.save(cut_net.state_dict(), file)
    file.seek(0)
    torch.manual_seed(1)
    other = net()
    secateur.apply(other, secateur.plan_channels(other, image(), 0.5))
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(image()), cut_net(image()))


def test_a_state_goes_into_a_model_built_small(cut_net: Net) -> None:
    small = Net(8, 6).eval()
    small.load_state_dict(cut_net.state_dict())
    assert torch.equal(small(image()), cut_net(image()))


def test_a_cut_model_can_be_compiled(cut_net: Net) -> None:
    assert torch.equal(torch.compile(cut_net, backend="eager", fullgraph=True)(image()), cut_net(image()))


def test_a_compiled_model_goes_on_after_the_cut() -> None:
    model = net()
    compiled = torch.compile(model, backend="eager")
    compiled(image())
    secateur.apply(compiled, secateur.plan_channels(compiled, image(), 0.5))
    assert model.conv.out_channels == 8
    assert torch.equal(compiled(image()), model(image()))


def test_a_cut_model_can_be_exported(cut_net: Net) -> None:
    exported = torch.export.export(cut_net, (image(),)).module()
    torch.testing.assert_close(exported(image()), cut_net(image()))


def test_a_cut_model_with_attributes_can_be_exported() -> None:
    model = Heads()
    secateur.apply(model, secateur.plan_channels(model, sequence(), 0.5))
    exported = torch.export.export(model, (sequence(),)).module()
    torch.testing.assert_close(exported(sequence()), model(sequence()))


@pytest.fixture
def one_process() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_a_cut_model_can_be_wrapped_for_several_processes(cut_net: Net) -> None:
    wrapped = DistributedDataParallel(cut_net)
    backward(wrapped)
    assert cut_net.conv.weight.grad is not None
    assert cut_net.conv.weight.grad.shape == (8, 3, 3, 3)


@pytest.mark.usefixtures("one_process")
def test_a_wrapped_model_is_refused_and_untouched() -> None:
    model = net()
    wrapped = DistributedDataParallel(model)
    plan = secateur.plan_channels(wrapped, image(), 0.5)
    before = everything(model)
    with pytest.raises(secateur.UsageError, match=r"cut model\.module and wrap it again"):
        secateur.apply(wrapped, plan)
    assert everything(model) == before


def test_channels_last_models_give_the_same_outputs() -> None:
    model = net()
    plan = secateur.plan_channels(model, image(), 0.5)
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    inputs = image().to(memory_format=torch.channels_last)
    assert secateur.plan_channels(last, inputs, 0.5) == plan
    torch.testing.assert_close(secateur.apply(last, plan)(inputs), secateur.apply(model, plan)(image()))


def test_channels_last_weights_stay_so() -> None:
    model = net().to(memory_format=torch.channels_last)
    secateur.apply(model, secateur.plan_channels(model, image(), 0.5))
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["resnet_basic", "swiglu", "gqa_expand", "mobilenet_v2", "attention_separate"])
def test_a_model_without_values_is_cut_to_the_same_shapes(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model = architecture.build()
    hollow = copy.deepcopy(model).to("meta")
    secateur.apply(hollow, secateur.plan_channels(hollow, architecture.inputs(), 0.5))
    secateur.apply(model, secateur.plan_channels(model, architecture.inputs(), 0.5))
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    assert {name: tensor.shape for name, tensor in hollow.state_dict().items()} == shapes
    assert {tensor.device.type for tensor in hollow.state_dict().values()} == {"meta"}


def test_a_plan_made_with_values_fits_the_model_without() -> None:
    model = net()
    plan = secateur.plan_channels(model, image(), 0.5)
    with torch.device("meta"):
        hollow = Net()
    secateur.apply(hollow, plan)
    assert hollow.conv.weight.shape == (8, 3, 3, 3)


def test_a_model_without_values_cannot_be_proven() -> None:
    plan = secateur.plan_channels(net(), image(), 0.5)
    with pytest.raises(secateur.UsageError, match="on the meta device"):
        secateur.verify(net().to("meta"), plan)


def test_gradients_flow_though_an_old_graph_is_still_held() -> None:
    model = net()
    held = model(image()).sum()
    secateur.apply(model, secateur.plan_channels(model, image(), 0.5))
    backward(model)
    assert model.conv.weight.grad is not None
    assert model.conv.weight.grad.shape == (8, 3, 3, 3)
    assert held.requires_grad


# Optimizers

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01, amsgrad=True),
}


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_momenta_are_cut_along(name: str) -> None:
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    stepped(model, optimizer, 3)
    before = {name: copy.deepcopy(optimizer.state[parameter]) for name, parameter in model.named_parameters()}
    plan = secateur.plan_channels(model, image(), 0.5)
    secateur.apply(model, plan, optimizer=optimizer)
    for name, parameter in model.named_parameters():
        assert optimizer.state[parameter].keys() == before[name].keys()
        for key, old in before[name].items():
            shaped = isinstance(old, Tensor) and old.dim() > 0 and name in plan.tensors
            expected = selected(old, plan.tensors[name]) if shaped else old
            assert torch.equal(torch.as_tensor(optimizer.state[parameter][key]), torch.as_tensor(expected)), (name, key)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_as_in_a_model_built_small(name: str) -> None:
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    stepped(model, optimizer, 3)
    secateur.apply(model, secateur.plan_channels(model, image(), 0.5), optimizer=optimizer)
    small = Net(8, 6).eval()
    small.load_state_dict(model.state_dict())
    small_optimizer = OPTIMIZERS[name](small.parameters())
    small_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    stepped(model, optimizer)
    stepped(small, small_optimizer)
    assert_same_values(model, values(small))


def test_state_that_cannot_be_cut_starts_anew() -> None:
    model = net()
    optimizer = torch.optim.Adafactor(model.parameters(), 0.01)
    stepped(model, optimizer, 2)
    secateur.apply(model, secateur.plan_channels(model, image(), 0.5), optimizer=optimizer)
    assert not optimizer.state[model.hidden.weight], "row and column factors have other shapes than the weight"
    assert optimizer.state[model.output.bias], "what is not cut keeps its state"
    before = values(model)
    stepped(model, optimizer)
    assert not torch.equal(model.hidden.weight, before["hidden.weight"])


def test_an_optimizer_that_was_not_given_still_refers_to_the_parameters() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    secateur.apply(model, secateur.plan_channels(model, image(), 0.5))
    before = values(model)
    stepped(model, optimizer)
    assert not torch.equal(model.conv.weight, before["conv.weight"])


def test_an_optimizer_does_not_go_with_masks() -> None:
    model = net()
    masks = secateur.plan_weights(model, 0.5)
    with pytest.raises(secateur.UsageError, match="belong to plans of plan_channels"):
        secateur.apply(model, masks, optimizer=torch.optim.SGD(model.parameters(), 0.1))


# All or nothing


def failing_at(count: int, function: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    calls = 0

    def failing(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            raise error
        return function(*args)

    return failing


@pytest.mark.parametrize("error", [MemoryError("no more"), KeyboardInterrupt()], ids=["memory", "ctrl-c"])
def test_a_cut_that_fails_at_any_tensor_leaves_everything_as_it_was(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Heads()
    optimizer = torch.optim.AdamW(model.parameters())
    model(sequence()).sum().backward()
    optimizer.step()
    plan = secateur.plan_channels(model, sequence(), 0.5)
    before, before_states = everything(model), states(optimizer)
    axes = sum(len(cut.kept) for cut in plan.tensors.values())
    assert axes == 7, "three projections with their biases, and the inputs of the last"
    for count in range(1, axes + 1):
        with monkeypatch.context() as patch:
            patch.setattr(secateur.cut, "_cut_axis", failing_at(count, secateur.cut._cut_axis, error))
            with pytest.raises(type(error)):
                secateur.apply(model, plan, optimizer=optimizer, verify=False)
        assert everything(model) == before
        assert states(optimizer) == before_states
    secateur.apply(model, plan, optimizer=optimizer)
    assert model.heads == 2


@pytest.mark.parametrize("step", ["write_attributes", "_update_descriptions", "cut_state"])
def test_a_cut_that_fails_after_the_tensors_leaves_everything_as_it_was(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Heads()
    model(sequence()).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer.step()
    plan = secateur.plan_channels(model, sequence(), 0.5)
    before, before_states = everything(model), states(optimizer)
    monkeypatch.setattr(secateur.cut, step, failing_at(1, getattr(secateur.cut, step), KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        secateur.apply(model, plan, optimizer=optimizer, verify=False)
    assert everything(model) == before
    assert states(optimizer) == before_states


@pytest.mark.parametrize("count", [1, 4])
def test_ctrl_c_right_after_data_are_replaced_is_undone(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    plan = secateur.plan_channels(model, image(), 0.5)
    before = everything(model)
    replace, calls = secateur.cut._replace_data, 0

    def interrupted(tensor: Tensor, data: Tensor) -> None:
        nonlocal calls
        calls += 1
        replace(tensor, data)
        if calls == count:
            raise KeyboardInterrupt

    monkeypatch.setattr(secateur.cut, "_replace_data", interrupted)
    with pytest.raises(KeyboardInterrupt):
        secateur.apply(model, plan, verify=False)
    assert everything(model) == before


@pytest.mark.parametrize("verify", [None, True, False])
def test_a_plan_for_other_widths_is_refused(verify: bool | None) -> None:
    plan = secateur.plan_channels(net(), image(), 0.5)
    other = Net(20, 12)
    before = everything(other)
    with pytest.raises(
        secateur.UsageError, match=r"cuts conv\.weight of shape \(16, 3, 3, 3\).*has shape \(20, 3, 3, 3\)"
    ):
        secateur.apply(other, plan, verify=verify)
    assert everything(other) == before


@pytest.mark.parametrize("verify", [None, True, False])
def test_a_plan_for_another_architecture_is_refused(verify: bool | None) -> None:
    plan = secateur.plan_channels(net(), image(), 0.5)
    other = nn.Sequential(nn.Linear(3, 4))
    with pytest.raises(secateur.UsageError, match=r"cuts conv\.weight, which the model does not have"):
        secateur.apply(other, plan, verify=verify)


def test_a_plan_is_applied_once(cut_net: Net) -> None:
    plan = secateur.plan_channels(net(), image(), 0.5)
    before = everything(cut_net)
    with pytest.raises(secateur.UsageError, match="apply a plan once"):
        secateur.apply(cut_net, plan)
    assert everything(cut_net) == before


@pytest.mark.parametrize("verify", [None, True, False])
def test_a_model_with_other_attributes_is_refused(verify: bool | None) -> None:
    plan = secateur.plan_channels(Heads(24, 4), sequence(), 0.5)
    other = Heads(24, 8)
    before = everything(other)
    with pytest.raises(secateur.UsageError, match="expects heads to be 4, but it is 8"):
        secateur.apply(other, plan, verify=verify)
    assert everything(other) == before


# Proofs


def tampered(plan: secateur.Plan, name: str, axis: int, change: Callable[[np.ndarray], np.ndarray]) -> secateur.Plan:
    cut = plan.tensors[name]
    changed = TensorCut(cut.shape, {**cut.kept, axis: change(cut.kept[axis].copy())})
    return dataclasses.replace(plan, tensors={**plan.tensors, name: changed})


def with_first_two_swapped(kept: np.ndarray) -> np.ndarray:
    kept[[0, 1]] = kept[[1, 0]]
    return kept


def with_one_removed_index(kept: np.ndarray) -> np.ndarray:
    removed = np.setdiff1d(np.arange(len(kept) * 2), kept)
    return np.sort(np.append(kept[1:], removed[0]))


def without(plan: secateur.Plan, name: str) -> secateur.Plan:
    return dataclasses.replace(plan, tensors={key: cut for key, cut in plan.tensors.items() if key != name})


FALSE_PLANS: dict[str, Callable[[secateur.Plan], secateur.Plan]] = {
    "a consumer's indices swapped": lambda plan: tampered(plan, "hidden.weight", 1, with_first_two_swapped),
    "a norm's indices swapped": lambda plan: tampered(plan, "norm.running_mean", 0, with_first_two_swapped),
    "a consumer keeps another index": lambda plan: tampered(plan, "hidden.weight", 1, with_one_removed_index),
    "a bias keeps another index": lambda plan: tampered(plan, "hidden.bias", 0, with_one_removed_index),
    "a consumer is not cut": lambda plan: without(plan, "output.weight"),
    "a buffer is not cut": lambda plan: without(plan, "norm.running_var"),
}


def test_a_true_plan_is_proven() -> None:
    model = net()
    proof = secateur.verify(model, secateur.plan_channels(model, image(), 0.5))
    assert proof.error <= 1e-10
    assert proof.moved
    assert proof.outputs == 1
    assert str(proof).startswith("exact: the outputs differ from the reference by at most ")


def test_a_proof_says_where_nothing_was_at_stake() -> None:
    model = net()
    nn.init.zeros_(model.output.weight)
    proof = secateur.verify(model, secateur.plan_channels(model, image(), 0.5, keep=["hidden"]))
    assert not proof.moved
    assert "no influence" in str(proof)


def test_other_inputs_can_be_given_for_the_proof() -> None:
    model = net()
    plan = secateur.plan_channels(model, image(), 0.5)
    assert secateur.verify(model, plan, image(7)).moved


@pytest.mark.parametrize("name", FALSE_PLANS)
def test_a_false_plan_fails_the_proof(name: str) -> None:
    model = net()
    false = FALSE_PLANS[name](secateur.plan_channels(model, image(), 0.5))
    with pytest.raises(ProofFailed, match=r"The cut model (is not what the plan says|does not run)"):
        secateur.verify(model, false)


@pytest.mark.parametrize("verify", [None, True])
@pytest.mark.parametrize("name", FALSE_PLANS)
def test_a_false_plan_is_refused_asked_or_not(name: str, verify: bool | None) -> None:
    model = net()
    false = FALSE_PLANS[name](secateur.plan_channels(model, image(), 0.5))
    before = everything(model)
    with pytest.raises(ProofFailed):
        secateur.apply(model, false, verify=verify)
    assert everything(model) == before


@pytest.mark.parametrize("heads", [1, 3])
def test_a_wrong_attribute_fails_the_proof(heads: int) -> None:
    model = Heads()
    plan = secateur.plan_channels(model, sequence(), 0.5)
    false = dataclasses.replace(plan, attributes={key: (old, heads) for key, (old, _) in plan.attributes.items()})
    before = everything(model)
    with pytest.raises(ProofFailed, match="would not run"):
        secateur.apply(model, false)
    assert everything(model) == before


@pytest.fixture
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "_CHEAP_PARAMETERS", 0)
    monkeypatch.setattr(rehearsal, "_CHEAP_MACS", 0)


@pytest.mark.usefixtures("_everything_is_large")
@pytest.mark.parametrize("name", ["a consumer is not cut", "a buffer is not cut"])
def test_a_large_plan_with_which_the_code_does_not_run_is_refused(name: str) -> None:
    model = net()
    false = FALSE_PLANS[name](secateur.plan_channels(model, image(), 0.5))
    before = everything(model)
    with pytest.raises(ProofFailed, match=r"would not run .*nothing was cut"):
        secateur.apply(model, false)
    assert everything(model) == before


@pytest.mark.usefixtures("_everything_is_large")
def test_a_large_plan_that_changes_the_outputs_is_refused() -> None:
    model = net()
    plan = secateur.plan_channels(model, image(), 0.5)
    fewer = np.arange(3)
    outputs = {
        "output.weight": TensorCut((5, 12), {0: fewer, 1: plan.tensors["output.weight"].kept[1]}),
        "output.bias": TensorCut((5,), {0: fewer}),
    }
    before = everything(model)
    with pytest.raises(ProofFailed, match=r"outputs of shapes \(\(2, 3\),\) instead of \(\(2, 5\),\)"):
        secateur.apply(model, dataclasses.replace(plan, tensors={**plan.tensors, **outputs}))
    assert everything(model) == before


@pytest.mark.usefixtures("_everything_is_large")
def test_a_large_true_plan_is_applied_without_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    plan = secateur.plan_channels(model, image(), 0.5)
    monkeypatch.setattr("secateur.prove.verify.verify", lambda *_: pytest.fail("it was proven all the same"))
    assert secateur.apply(model, plan).conv.out_channels == 8


def test_a_proof_can_be_left_out() -> None:
    model = net()
    false = tampered(secateur.plan_channels(model, image(), 0.5), "hidden.weight", 1, with_first_two_swapped)
    assert secateur.apply(model, false, verify=False).conv.out_channels == 8


# Files


def test_a_plan_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    plan = secateur.plan_channels(Heads(), sequence(), 0.5)
    plan.save(tmp_path / "plan.json")
    loaded = secateur.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert str(loaded) == str(plan)
    assert [type(i) for i in loaded.attributes] == [tuple] * len(plan.attributes)


def test_a_loaded_plan_cuts_another_instance_alike(tmp_path: Path) -> None:
    model = net()
    plan = secateur.plan_channels(model, image(), 0.5)
    plan.save(tmp_path / "plan.json")
    other = Net().eval()
    other.load_state_dict(model.state_dict())
    secateur.apply(other, secateur.Plan.load(tmp_path / "plan.json"))
    assert torch.equal(other(image()), secateur.apply(model, plan)(image()))


def test_a_loaded_plan_can_be_proven_with_inputs(tmp_path: Path) -> None:
    model = net()
    secateur.plan_channels(model, image(), 0.5).save(tmp_path / "plan.json")
    loaded = secateur.Plan.load(tmp_path / "plan.json")
    assert secateur.verify(model, loaded, image()).moved
    with pytest.raises(secateur.UsageError, match="example inputs are not saved"):
        secateur.verify(model, loaded)


def stored_plan() -> dict[str, Any]:
    return json.loads(json.dumps(secateur.plan_channels(Heads(), sequence(), 0.5).to_json()))


def set_kept(kept: Any) -> Callable[[dict[str, Any]], None]:
    def change(stored: dict[str, Any]) -> None:
        stored["tensors"]["query.weight"]["kept"]["0"] = kept

    return change


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another format": lambda stored: stored.update(format="something"),
    "another version": lambda stored: stored.update(version=2),
    "no version": lambda stored: stored.pop("version"),
    "no tensors": lambda stored: stored.pop("tensors"),
    "tensors as a list": lambda stored: stored.update(tensors=[]),
    "no shape": lambda stored: stored["tensors"]["query.weight"].pop("shape"),
    "index out of range": set_kept([0, 1, 24]),
    "index twice": set_kept([0, 1, 1]),
    "indices out of order": set_kept([1, 0]),
    "negative index": set_kept([-1, 0, 1]),
    "fractions": set_kept([0.0, 1.5]),
    "truth values": set_kept([False, True]),
    "text": set_kept("01"),
    "nothing kept": set_kept([]),
    "more kept than there are": set_kept([*range(25)]),
    "indices in a list of lists": set_kept([[0, 1]]),
    "an axis too many": lambda stored: stored["tensors"]["query.weight"]["kept"].update({"2": [0]}),
    "a negative axis": lambda stored: stored["tensors"]["query.weight"]["kept"].update({"-1": [0]}),
    "attributes without a place": lambda stored: stored["attributes"][0].pop("way"),
    "attributes as text": lambda stored: stored["attributes"][0].update(new="two"),
    "groups with other fields": lambda stored: stored["groups"][0].update(colour="red"),
    "parameters as one number": lambda stored: stored.update(parameters=5),
    "macs as text": lambda stored: stored.update(macs=["1", "2"]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_plan_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    stored = stored_plan()
    DAMAGE[name](stored)
    (tmp_path / "plan.json").write_text(json.dumps(stored))
    with pytest.raises(secateur.SecateurError) as caught:
        secateur.Plan.load(tmp_path / "plan.json")
    assert "\n" not in str(caught.value)
    assert any(words in str(caught.value) for words in ("The plan is damaged", "not a plan", "The plan has version"))


@pytest.mark.parametrize("new", [2.7, True, "2"])
def test_attributes_that_are_no_whole_numbers_are_refused(new: Any) -> None:
    stored = stored_plan()
    stored["attributes"][0]["new"] = new
    with pytest.raises(secateur.SecateurError, match="damaged"):
        secateur.Plan.from_json(stored)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", "\x00\xff", "[" * 100_000])
def test_a_file_that_is_no_plan_is_refused_in_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(secateur.SecateurError, match=r"not a (readable )?plan") as caught:
        secateur.Plan.load(tmp_path / "plan.json")
    assert "\n" not in str(caught.value)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    text = json.dumps(stored_plan())
    for length in range(1, len(text), len(text) // 20):
        (tmp_path / "plan.json").write_text(text[:length])
        with pytest.raises(secateur.SecateurError, match="not a readable plan"):
            secateur.Plan.load(tmp_path / "plan.json")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(secateur.SecateurError, match="There is no plan"):
        secateur.Plan.load(tmp_path / "plan.json")


# Two cuts as one


@pytest.mark.parametrize("name", ["resnet_basic", "gqa_expand", "shared_config", "group_norm", "mobilenet_v2"])
def test_two_cuts_compose_into_one(name: str) -> None:
    architecture = ARCHITECTURES[name]
    dense, inputs = architecture.build(), architecture.inputs()
    model = copy.deepcopy(dense)
    first = secateur.plan_channels(model, inputs, 0.3)
    secateur.apply(model, first)
    second = secateur.plan_channels(model, inputs, 0.4)
    secateur.apply(model, second)
    both = first.then(second)
    assert secateur.verify(dense, both).moved
    secateur.apply(dense, both)
    assert_same_values(dense, values(model))
    assert torch.equal(call(dense, inputs), call(model, inputs))
    assert both.parameters == (first.parameters[0], second.parameters[1])
    assert both.macs == (first.macs[0], second.macs[1])


def test_composed_groups_count_from_the_dense_model() -> None:
    model = net()
    first = secateur.plan_channels(model, image(), 0.25)
    secateur.apply(model, first)
    second = secateur.plan_channels(model, image(), per_layer={"conv": 0.5})
    groups = {group.name: (group.before, group.after) for group in first.then(second).groups}
    assert groups == {"conv": (16, 6), "hidden": (12, 9)}


def test_a_composed_plan_survives_its_file(tmp_path: Path) -> None:
    model = net()
    first = secateur.plan_channels(model, image(), 0.25)
    secateur.apply(model, first)
    both = first.then(secateur.plan_channels(model, image(), 0.5))
    both.save(tmp_path / "plan.json")
    assert secateur.Plan.load(tmp_path / "plan.json") == both
