"""What a cut model can be used for: copied, saved, compiled, exported, wrapped, on any device."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

import secateur
from secateur.base.models import named_tensors
from tests.architectures import ARCHITECTURES
from tests.support.cutting import Heads, Net, backward, everything, image, net, sequence


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
    for tensor in named_tensors(cut_net).values():
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
