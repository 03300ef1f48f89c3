"""What a cut leaves as it was, and that all else is exactly what the plan says."""

from __future__ import annotations

import pytest
import torch
import torch.distributed
from torch import nn

import secateur
from secateur.base.models import named_tensors
from tests.architectures import ARCHITECTURES
from tests.support.cutting import Heads, assert_same_values, backward, image, net, selected, sequence, values


def test_parameters_and_buffers_stay_the_same_objects() -> None:
    model = net()
    before = {name: id(tensor) for name, tensor in named_tensors(model).items()}
    secateur.apply(model, secateur.plan_channels(model, image(), 0.5))
    assert {name: id(tensor) for name, tensor in named_tensors(model).items()} == before


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
