"""Any loop that steps an optimizer prunes on schedule, as the same cuts by hand do."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import secateur
from secateur import Channels, Target, UsageError, Zeros, prune_while_training
from tests.support.forked import run_ranks
from tests.support.models import ConvNet, blobs, trained_convnet

STEPS = 20
EXAMPLE = torch.zeros(1, 4, 4, 4)


def batches(count: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    images, labels = blobs().tensors
    picks = torch.randint(0, len(images), (count, 16), generator=torch.Generator().manual_seed(5))
    return [(images[pick], labels[pick]) for pick in picks]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: Iterable[tuple[Tensor, Tensor]]) -> None:
    model.train()
    for images, labels in data:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()


def zeros_of(model: nn.Module) -> int:
    return sum(int((model.get_parameter(f"{name}.weight") == 0).sum()) for name in ("conv", "hidden", "output"))


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_gradual_zeros_follow_the_cubic_ramp_and_are_held_in_between() -> None:
    model = trained_convnet()
    optimizer = adam(model)
    weights = 4 * 8 * 9 + 128 * 32 + 32 * 4
    told: list[tuple[dict[str, float], int]] = []
    found = []
    with prune_while_training(
        model, optimizer, 0.8, steps=STEPS, schedule="gradual", start=0.1, end=0.5, log=lambda *each: told.append(each)
    ) as pruning:
        for batch in batches():
            train(model, optimizer, [batch])
            found.append(zeros_of(model))
    expected = {step: round(0.8 * (1 - (1 - (i + 1) / 9) ** 3) * weights) for i, step in enumerate(range(2, 11))}
    assert [(numbers["zeros"], step) for numbers, step in told] == [(zeros, step) for step, zeros in expected.items()]
    assert found == [expected.get(min(step, 10), 0) for step in range(1, STEPS + 1)]
    assert told[-1][0]["sparsity"] == pytest.approx(0.8, abs=1e-3)
    assert pruning.masks is not None
    assert zeros_of(model) == pruning.masks.zeros
    train(model, optimizer, batches(1))
    pruning.release()
    assert zeros_of(model) < pruning.masks.zeros, "released, the weights move again"


@pytest.mark.parametrize("optimizer_of", [adam, lambda m: torch.optim.SGD(m.parameters(), 0.05, momentum=0.9)])
def test_channels_cut_on_the_way_are_those_cut_by_hand(optimizer_of: Any) -> None:
    model, twin = trained_convnet(), trained_convnet()
    optimizer, by_hand = optimizer_of(model), optimizer_of(twin)
    told: list[tuple[dict[str, float], int]] = []
    with prune_while_training(
        model,
        optimizer,
        Channels(0.5),
        steps=STEPS,
        schedule="iterative",
        cuts=2,
        start=0.25,
        end=0.5,
        example_inputs=EXAMPLE,
        log=lambda *each: told.append(each),
    ) as pruning:
        train(model, optimizer, batches())

    train(twin, by_hand, batches()[:5])
    first = secateur.plan_channels(twin, EXAMPLE, 1 - 0.5**0.5)
    secateur.apply(twin, first, optimizer=by_hand)
    train(twin, by_hand, batches()[5:10])
    second = secateur.plan_channels(twin, EXAMPLE, 0.5, previous=first)
    secateur.apply(twin, second, optimizer=by_hand)
    train(twin, by_hand, batches()[10:])

    assert_same(model, twin)
    assert pruning.plan == first.then(second)
    assert model.conv.out_channels == 4
    assert [(numbers["parameters"], numbers["macs"], step) for numbers, step in told] == [
        (first.parameters[1], first.macs[1], 5),
        (second.parameters[1], second.macs[1], 10),
    ]


def test_a_one_shot_cut_comes_before_the_first_step_and_a_scheduler_goes_on() -> None:
    model = trained_convnet()
    optimizer = adam(model)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
    with prune_while_training(model, optimizer, Target("params=50%"), steps=STEPS, example_inputs=EXAMPLE) as pruning:
        assert pruning.plan is not None
        for batch in batches():
            train(model, optimizer, [batch])
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0
    assert pruning.plan.parameters[1] == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("cut", [Zeros(0.8), Channels(0.5, score="taylor")], ids=["zeros", "channels"])
@pytest.mark.parametrize("stop", [3, 12])
def test_a_resumed_training_ends_as_one_that_was_never_stopped(tmp_path: Path, cut: Any, stop: int) -> None:
    when: Any = {"steps": STEPS, "schedule": "iterative", "cuts": 3, "start": 0.3}
    when |= {"example_inputs": EXAMPLE} if isinstance(cut, Channels) else {}
    whole = trained_convnet()
    with prune_while_training(whole, optimizer := adam(whole), cut, **when):
        train(whole, optimizer, batches())

    model = trained_convnet()
    pruning = prune_while_training(model, optimizer := adam(model), cut, **when)
    train(model, optimizer, batches()[:stop])
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    pruning.save(tmp_path)

    again = ConvNet()
    optimizer = adam(again)
    with prune_while_training(again, optimizer, cut, resume=tmp_path, **when) as resumed:
        stored = torch.load(tmp_path / "checkpoint.pt")
        again.load_state_dict(stored["model"])
        optimizer.load_state_dict(stored["optimizer"])
        train(again, optimizer, batches()[stop:])
    assert_same(again, whole)
    secateur.save(again, resumed.plan or resumed.masks or [], tmp_path / "pruned")
    assert_same(secateur.load(tmp_path / "pruned", ConvNet), whole)


def test_it_follows_accelerate_with_accumulated_gradients_and_mixed_precision(tmp_path: Path) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)  # of an earlier test
    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16", cpu=True)
    model = trained_convnet()
    model, optimizer = accelerator.prepare(model, adam(model))
    with prune_while_training(model, optimizer, Zeros(0.8), steps=STEPS // 2, schedule="gradual") as pruning:
        for images, labels in batches():
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(images), labels))
                optimizer.step()
                optimizer.zero_grad()
    plain = accelerator.unwrap_model(model)
    assert pruning.state.step == STEPS // 2
    assert zeros_of(plain) == round(0.8 * (288 + 4096 + 128))
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def test_an_interruption_in_the_middle_of_a_step_leaves_the_zeros() -> None:
    model = trained_convnet()
    optimizer = adam(model)

    steps = iter(range(STEPS))

    def interrupt(*args: Any) -> None:
        if next(steps) == 5:
            raise KeyboardInterrupt

    optimizer.register_step_post_hook(interrupt)  # before the zeros are put back
    with pytest.raises(KeyboardInterrupt), prune_while_training(model, optimizer, 0.8, steps=STEPS):
        train(model, optimizer, batches())
    assert zeros_of(model) == round(0.8 * 4512)


def test_a_training_that_diverged_is_told_at_the_next_cut_and_loses_no_zero() -> None:
    model = trained_convnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e30)
    with (
        pytest.raises(secateur.SecateurError, match=r"infinite|NaN"),
        prune_while_training(model, optimizer, 0.8, steps=STEPS, schedule="iterative", cuts=3) as pruning,
    ):
        train(model, optimizer, batches())
    assert pruning.masks is not None
    assert zeros_of(model) == pruning.masks.zeros > 0


def test_a_training_that_ends_early_says_so() -> None:
    model = trained_convnet()
    optimizer = adam(model)
    with (
        pytest.warns(secateur.SecateurWarning, match="ended after 10 steps, before the last cut after 15"),
        prune_while_training(model, optimizer, 0.8, steps=STEPS, schedule="gradual"),
    ):
        train(model, optimizer, batches(10))


@pytest.mark.parametrize(
    ("cut", "options", "sentence"),
    [
        (0.8, {"steps": 0}, "steps is 0"),
        (0.8, {"schedule": "gradual", "end": 1.5}, "before the training ends"),
        (0.8, {"schedule": "gradual", "start": 0.6, "end": 0.5}, "comes after the first"),
        (0.8, {"end": 0.5}, "leave out end"),
        (0.8, {"schedule": "gradual", "cuts": 3}, "cuts belongs to"),
        (0.8, {"schedule": "iterative", "cuts": 9, "steps": 4}, "There are 4 steps between start and end, and 9 cuts"),
        (0.8, {"example_inputs": EXAMPLE}, "example_inputs belongs to channels"),
        (0.0, {}, "prunes no weight"),
        (Zeros(pattern="2:4"), {"schedule": "gradual"}, "has no amounts between"),
        (Channels(0.5), {}, "give example_inputs"),
        (Channels(0.5), {"schedule": "gradual", "example_inputs": EXAMPLE}, "Channels go in whole cuts"),
        (Channels(0.0), {"example_inputs": EXAMPLE, "start": 0.5}, "too small to remove a single channel"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_step(cut: Any, options: dict[str, Any], sentence: str) -> None:
    model = trained_convnet()
    optimizer = adam(model)
    with pytest.raises(UsageError, match=sentence):
        prune_while_training(model, optimizer, cut, **{"steps": STEPS, **options})
    assert_same(model, trained_convnet())
    assert not optimizer._optimizer_step_post_hooks


def test_optimizers_that_cannot_be_followed_are_refused() -> None:
    model = trained_convnet()
    with pytest.raises(UsageError, match="whose steps cannot be followed"):
        prune_while_training(model, object(), 0.8, steps=STEPS)  # type: ignore[arg-type]
    foreign = adam(trained_convnet())
    with pytest.raises(UsageError, match="trains none of the model's parameters"):
        prune_while_training(model, foreign, Channels(0.5), steps=STEPS, start=0.5, example_inputs=EXAMPLE)


def test_another_cut_does_not_go_on_from_a_state(tmp_path: Path) -> None:
    model = trained_convnet()
    prune_while_training(model, adam(model), 0.8, steps=STEPS).save(tmp_path)
    with pytest.raises(UsageError, match="pruned single weights; go on with the same cut"):
        prune_while_training(model, adam(model), Channels(0.5), steps=STEPS, example_inputs=EXAMPLE, resume=tmp_path)


def test_a_cut_of_channels_is_refused_where_several_processes_train(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        model = DistributedDataParallel(trained_convnet())
        optimizer = adam(model)
        with pytest.raises(UsageError, match="while several processes train the model"):
            prune_while_training(model, optimizer, Channels(0.5), steps=STEPS, start=0.5, example_inputs=EXAMPLE)
        with prune_while_training(model, optimizer, Zeros(0.8), steps=STEPS, schedule="gradual"):
            train(model, optimizer, batches())
        assert zeros_of(model.module) == round(0.8 * 4512)
        flattened = FullyShardedDataParallel(trained_convnet(), device_id=torch.device("cpu"), use_orig_params=True)
        with pytest.raises(UsageError, match="FSDP version 1 flattens the weights"):
            prune_while_training(flattened, adam(flattened), Zeros(0.8), steps=STEPS)
    finally:
        torch.distributed.destroy_process_group()


def test_two_processes_prune_alike_with_ddp_and_fsdp(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "scripts" / "distributed_while_training.py"
    assert run_ranks(script, processes=2, folder=tmp_path).count("pruned alike") == 2
