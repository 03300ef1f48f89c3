"""Zeros stay zero for 200 steps under every optimizer and training technique that moves weights."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer

import secateur
from tests.support.models import ConvNet, blobs

STEPS = 200

OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "SGD with momentum and decay": lambda m: torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, weight_decay=1e-2),
    "SGD with Nesterov": lambda m: torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, nesterov=True),
    "SGD fused": lambda m: torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, fused=True),
    "Adam with decay": lambda m: torch.optim.Adam(m.parameters(), 1e-2, weight_decay=1e-2),
    "Adam with amsgrad": lambda m: torch.optim.Adam(m.parameters(), 1e-2, amsgrad=True),
    "Adam fused": lambda m: torch.optim.Adam(m.parameters(), 1e-2, fused=True),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), 1e-2, weight_decay=0.1),
    "AdamW foreach": lambda m: torch.optim.AdamW(m.parameters(), 1e-2, foreach=True),
    "AdamW fused": lambda m: torch.optim.AdamW(m.parameters(), 1e-2, fused=True),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters(), 1e-3, momentum=0.9, centered=True, weight_decay=1e-2),
    "Adagrad": lambda m: torch.optim.Adagrad(m.parameters(), 1e-2, initial_accumulator_value=0.1),
    "parameter groups": lambda m: torch.optim.AdamW(
        [{"params": m.conv.parameters(), "lr": 1e-3}, {"params": [*m.norm.parameters(), *m.hidden.parameters()]}], 1e-2
    ),
}
if hasattr(torch.optim, "Muon"):
    OPTIMIZERS["Muon"] = lambda m: torch.optim.Muon([m.hidden.weight, m.output.weight], 1e-2, weight_decay=0.1)


def batches(count: int = STEPS, size: int = 32) -> list[tuple[torch.Tensor, torch.Tensor]]:
    images, labels = blobs().tensors
    picks = torch.randint(0, len(images), (count, size), generator=torch.Generator().manual_seed(5))
    return [(images[pick], labels[pick]) for pick in picks]


def revived(model: nn.Module, masks: secateur.Masks) -> int:
    return counter_of_revived(model, masks)()


def counter_of_revived(model: nn.Module, masks: secateur.Masks) -> Callable[[], int]:
    """For every step: the masks are unpacked once."""
    held = [(model.get_parameter(name), layer.pruned()) for name, layer in masks.layers.items()]
    return lambda: sum(int(torch.count_nonzero(parameter.detach()[pruned])) for parameter, pruned in held)


def warm_up(model: nn.Module, optimizer: Optimizer, steps: int = 10) -> None:
    """Fills the optimizer's moments while nothing is pruned yet: the state a cut in mid-training meets."""
    for images, labels in batches(steps):
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_optimizer_revives_a_weight(convnet: ConvNet, name: str) -> None:
    optimizer = OPTIMIZERS[name](convnet)
    warm_up(convnet, optimizer)
    masks = secateur.plan_weights(convnet, 0.8)
    before = copy.deepcopy(convnet.hidden.weight.detach())
    count_revived = counter_of_revived(convnet, masks)
    with secateur.hold(convnet, masks, optimizer):
        for images, labels in batches():
            F.cross_entropy(convnet(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            assert count_revived() == 0
    kept = ~masks.layers["hidden.weight"].pruned()
    assert not torch.equal(convnet.hidden.weight[kept], before[kept]), "the rest is still trained"
    for parameter, state in optimizer.state.items():
        held = [layer for n, layer in masks.layers.items() if convnet.get_parameter(n) is parameter]
        for value in state.values():
            if held and isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                assert (value[held[0].pruned()] == 0).all(), "no moment is left to push a weight later"


def test_without_hold_the_same_steps_do_revive_weights(convnet: ConvNet) -> None:
    """Shows that the test above can fail: masking once is not enough."""
    optimizer = OPTIMIZERS["SGD with momentum and decay"](convnet)
    warm_up(convnet, optimizer)
    masks = secateur.plan_weights(convnet, 0.8)
    secateur.apply(convnet, masks)
    for images, labels in batches(1):
        F.cross_entropy(convnet(images), labels).backward()
        optimizer.step()
    assert revived(convnet, masks) > 0


def test_under_bfloat16_autocast_and_gradient_accumulation(convnet: ConvNet) -> None:
    optimizer = OPTIMIZERS["AdamW"](convnet)
    masks = secateur.plan_weights(convnet, 0.8)
    with secateur.hold(convnet, masks, optimizer):
        for i, (images, labels) in enumerate(batches(4 * STEPS, size=8)):
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(convnet(images), labels) / 4
            loss.backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    assert revived(convnet, masks) == 0


def test_under_a_gradient_scaler_that_skips_steps(convnet: ConvNet) -> None:
    optimizer = OPTIMIZERS["SGD with momentum and decay"](convnet)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)  # overflows at first, so some steps are skipped
    masks = secateur.plan_weights(convnet, 0.8)
    with secateur.hold(convnet, masks, optimizer):
        for images, labels in batches():
            scaler.scale(1000 * F.cross_entropy(convnet(images), labels)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert scaler.get_scale() < 2.0**120
    assert revived(convnet, masks) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_half_precision(convnet: ConvNet, dtype: torch.dtype) -> None:
    model = convnet.to(dtype)
    optimizer = OPTIMIZERS["SGD with momentum and decay"](model)
    masks = secateur.plan_weights(model, 0.8)
    with secateur.hold(model, masks, optimizer):
        for images, labels in batches():
            F.cross_entropy(model(images.to(dtype)).float(), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert revived(model, masks) == 0


def test_under_torch_compile(convnet: ConvNet) -> None:
    compiled = torch.compile(convnet, backend="aot_eager")  # the code that Inductor writes holds no weights
    optimizer = OPTIMIZERS["AdamW"](convnet)
    masks = secateur.plan_weights(compiled, 0.8)
    with secateur.hold(compiled, masks, optimizer):
        for images, labels in batches():
            F.cross_entropy(compiled(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert revived(convnet, masks) == 0
    assert list(convnet.state_dict()) == list(ConvNet().state_dict())


def test_a_resumed_run_keeps_its_zeros(convnet: ConvNet, tmp_path: Path) -> None:
    optimizer = OPTIMIZERS["AdamW"](convnet)
    warm_up(convnet, optimizer)
    masks = secateur.plan_weights(convnet, 0.8)
    with secateur.hold(convnet, masks, optimizer):
        for images, labels in batches(STEPS // 2):
            F.cross_entropy(convnet(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.save({"model": convnet.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    masks.save(tmp_path / "masks.safetensors")

    state = torch.load(tmp_path / "state.pt", weights_only=True)
    resumed = ConvNet()
    resumed.load_state_dict(state["model"])
    optimizer = OPTIMIZERS["AdamW"](resumed)
    optimizer.load_state_dict(state["optimizer"])
    loaded = secateur.Masks.load(tmp_path / "masks.safetensors")
    with secateur.hold(resumed, loaded, optimizer):
        for images, labels in batches(STEPS // 2):
            F.cross_entropy(resumed(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert revived(resumed, masks) == 0


def test_frozen_weights_and_tied_weights_stay_pruned() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    model[2].weight.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    masks = secateur.plan_weights(model, 0.5)
    with secateur.hold(model, masks, optimizer):
        for _ in range(20):
            model(torch.randn(4, 8)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert revived(model, masks) == 0
    assert not any(parameter is model[2].weight for parameter in optimizer.state)


def test_release_lets_the_weights_move_again(convnet: ConvNet) -> None:
    optimizer = OPTIMIZERS["AdamW"](convnet)
    masks = secateur.plan_weights(convnet, 0.8)
    held = secateur.hold(convnet, masks, optimizer)
    warm_up(convnet, optimizer, 2)
    assert revived(convnet, masks) == 0
    held.release()
    warm_up(convnet, optimizer, 2)
    assert revived(convnet, masks) > 0


def test_an_optimizer_that_moves_weights_after_an_inner_one_is_held_as_a_whole(convnet: ConvNet) -> None:
    class Lookahead(torch.optim.Optimizer):
        """Pulls the weights towards slow copies after the inner step (Zhang et al., 2019)."""

        def __init__(self, optimizer: Optimizer) -> None:
            super().__init__(optimizer.param_groups, {})
            self.optimizer = optimizer
            self.slow = [[p.detach().clone() for p in group["params"]] for group in self.param_groups]

        def step(self, closure: object = None) -> None:
            self.optimizer.step()
            with torch.no_grad():
                for group, copies in zip(self.param_groups, self.slow, strict=True):
                    for parameter, copied in zip(group["params"], copies, strict=True):
                        parameter.lerp_(copied, 0.5)

    optimizer = Lookahead(torch.optim.SGD(convnet.parameters(), 0.05))
    masks = secateur.plan_weights(convnet, 0.8)
    with secateur.hold(convnet, masks, optimizer):
        warm_up(convnet, optimizer)
        assert revived(convnet, masks) == 0


def test_an_optimizer_of_another_model_is_noticed(convnet: ConvNet) -> None:
    optimizer = OPTIMIZERS["AdamW"](copy.deepcopy(convnet))
    with pytest.warns(secateur.SecateurWarning, match="trains none of the masked weights"):
        secateur.hold(convnet, secateur.plan_weights(convnet, 0.8), optimizer)


def test_the_model_carries_no_trace_of_the_hold(convnet: ConvNet) -> None:
    optimizer = OPTIMIZERS["AdamW"](convnet)
    with secateur.hold(convnet, secateur.plan_weights(convnet, 0.8), optimizer):
        assert list(convnet.state_dict()) == list(ConvNet().state_dict())
        assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in convnet.modules())
        assert all(p._backward_hooks is None for p in convnet.parameters())
        copy.deepcopy(convnet)
        copy.deepcopy(optimizer.state_dict())


def test_other_masks_take_the_place_of_those_in_force() -> None:
    model = ConvNet()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.1)
    warm_up(model, optimizer)
    first = secateur.plan_weights(model, 0.5)
    with secateur.hold(model, first, optimizer) as held:
        warm_up(model, optimizer, 3)
        second = secateur.plan_weights(model, 0.8, previous=first)
        held.update(second)
        assert held.masks is second
        assert revived(model, second) == 0, "at once"
        warm_up(model, optimizer, 3)
        assert revived(model, second) == 0
        with pytest.raises(secateur.UsageError, match="which this model lacks"):
            held.update(secateur.plan_weights(torch.nn.Sequential(torch.nn.Linear(4, 4)), 0.5))
        warm_up(model, optimizer, 3)
    assert revived(model, second) == 0, "masks that do not fit change nothing"
