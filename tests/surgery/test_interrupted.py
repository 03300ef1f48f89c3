"""Ctrl-C at any moment: a model is as it was or as it was to become, and the process is as it was."""

from __future__ import annotations

import copy
import signal
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur
from tests.support.cutting import Heads, Net, image, net, sequence
from tests.support.interrupts import Operation

pytestmark = [
    pytest.mark.usefixtures("ctrl_c_raises"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # where Python loses Ctrl-C
]

MANAGERS = ("contextlib.py", "grad_mode.py", "_python_dispatch.py", "dissection.py", "attributes.py", "base/models.py")
"""Where what was changed is put back."""

MODEL = net().train()
MODEL.norm.eval()
MASKS = secateur.plan_weights(MODEL, 0.5)
PLAN = secateur.plan_channels(MODEL, image(), 0.5)


def contents(model: nn.Module) -> dict[Any, Any]:
    """Every tensor with its bits, every number and flag, and how many hooks there are."""
    found: dict[Any, Any] = {}
    for path, module in model.named_modules():
        for key, item in vars(module).items():
            if key in ("_parameters", "_buffers"):
                found |= {(path, name): bits(tensor) for name, tensor in item.items()}
            elif isinstance(item, dict):
                found[path, key] = list(item)
            else:
                found[path, key] = type(item), item
    return found


def bits(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return type(tensor), tuple(tensor.shape), tensor.requires_grad, data, bits(tensor.grad if tensor.is_leaf else None)


def trained() -> tuple[Net, torch.optim.Optimizer]:
    model = copy.deepcopy(MODEL)
    optimizer = torch.optim.Adam(model.parameters())
    model(image()).sum().backward()
    optimizer.step()
    return model, optimizer


def contents_of_both(pair: tuple[Net, torch.optim.Optimizer]) -> Any:
    model, optimizer = pair
    states = [{key: bits(value) for key, value in state.items()} for state in optimizer.state.values()]
    return contents(model), states


def assert_all_or_nothing(operation: Operation[Any], moments: list[int]) -> None:
    left = [operation.left_by_interrupt(moment) for moment in moments]
    assert [each for each in left if not each.clean] == []
    assert sum(each.arrived for each in left) >= 0.95 * len(left)


def test_masks_are_applied_to_all_layers_or_to_none() -> None:
    operation = Operation(lambda: copy.deepcopy(MODEL), lambda model: secateur.apply(model, MASKS), contents)
    assert_all_or_nothing(operation, operation.moments())


def test_hold_applies_all_or_nothing_and_holds_nothing_that_nobody_could_release() -> None:
    def hold(pair: tuple[Net, torch.optim.Optimizer]) -> None:
        try:
            secateur.hold(pair[0], MASKS, pair[1])
        except KeyboardInterrupt:
            assert not pair[1]._optimizer_step_post_hooks  # type: ignore[attr-defined]
            raise

    operation = Operation(trained, hold, contents_of_both)
    assert_all_or_nothing(operation, operation.moments()[::3])


def test_a_step_that_is_interrupted_leaves_the_zeros_of_a_block() -> None:
    model, optimizer = trained()

    def interrupted(*args: Any) -> None:
        model.conv.weight.data.add_(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), secateur.hold(model, MASKS, optimizer):  # noqa: PT012
        optimizer.register_step_pre_hook(interrupted)
        optimizer.step()
    pruned = MASKS.layers["conv.weight"].pruned()
    assert bool((model.conv.weight[pruned] == 0).all())
    assert not optimizer._optimizer_step_post_hooks  # type: ignore[attr-defined]


def test_a_cut_is_made_whole_or_not_at_all() -> None:
    operation = Operation(
        trained, lambda pair: secateur.apply(pair[0], PLAN, optimizer=pair[1], verify=False), contents_of_both
    )
    assert_all_or_nothing(operation, operation.moments()[::6])


@pytest.mark.parametrize("model", [MODEL, Heads()], ids=["net", "heads"])
def test_planning_leaves_the_model_and_the_process_as_they_were(model: nn.Module) -> None:
    inputs = image() if isinstance(model, Net) else sequence()
    operation = Operation(
        lambda: copy.deepcopy(model), lambda model: secateur.plan_channels(model, inputs, 0.5), contents
    )
    assert_all_or_nothing(operation, operation.moments(*MANAGERS)[::7])


@pytest.mark.parametrize("verify", [True, None], ids=["proof", "dry run"])
def test_checking_a_plan_leaves_the_model_and_the_process_as_they_were(
    verify: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secateur.surgery.applying.is_cheap_to_prove", lambda model, plan: False)
    operation = Operation(
        lambda: copy.deepcopy(MODEL), lambda model: secateur.apply(model, PLAN, verify=verify), contents
    )
    assert_all_or_nothing(operation, operation.moments(*MANAGERS)[::7])


def test_ctrl_c_ends_a_pass_at_the_next_operation() -> None:
    """And not only where the whole pass is over."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
    passed: list[nn.Module] = []

    def interrupt_the_second(layer: nn.Module, *call: Any) -> None:
        passed.append(layer)
        if len(passed) == 2:
            signal.raise_signal(signal.SIGINT)

    for layer in model:
        layer.register_forward_hook(interrupt_the_second)
    with pytest.raises(KeyboardInterrupt):
        secateur.plan_channels(model, torch.randn(2, 4), 0.5)
    assert len(passed) == 2
