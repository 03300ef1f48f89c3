"""The stops of a run, its amounts along the way, and its learning rates."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import secateur
from secateur.loop.agenda import Check, Cut, Epoch, default_epochs, make_agenda, parse_epochs
from secateur.loop.recipe import finetune_scale, learning_rate_factor, make_optimizer
from secateur.plans.cuts import amount_at


def test_one_shot_trains_cuts_and_recovers() -> None:
    agenda = make_agenda("one-shot", 5, train_epochs=2, finetune_epochs=1.5, epoch_batches=10)
    assert [type(stop) for stop in agenda.stops] == [Epoch, Epoch, Cut, Epoch, Epoch]
    assert agenda.batches == 35
    last = agenda.stops[-1]
    assert isinstance(last, Epoch)
    assert (last.batches, last.phase_start, last.phase_batches, last.number) == (5, 10, 15, 3)


def test_a_trained_model_is_measured_first() -> None:
    agenda = make_agenda("one-shot", 5, train_epochs=0, finetune_epochs=0, epoch_batches=10)
    assert [type(stop) for stop in agenda.stops] == [Check, Cut]


@given(st.integers(1, 8), st.floats(0.1, 20), st.integers(1, 50))
def test_iterative_shares_the_epochs_between_its_cuts(cuts: int, epochs: float, epoch_batches: int) -> None:
    agenda = make_agenda("iterative", cuts, 0, epochs, epoch_batches)
    assert [stop.progress for stop in agenda.stops if isinstance(stop, Cut)] == [(i + 1) / cuts for i in range(cuts)]
    assert abs(agenda.batches - epochs * epoch_batches) <= cuts
    numbers = [stop.number for stop in agenda.stops if isinstance(stop, Epoch)]
    assert numbers == list(range(len(numbers))), "every epoch sees the data in an order of its own"


@given(st.floats(0.05, 20), st.integers(1, 50))
def test_gradual_reaches_the_amount_with_steps_to_spare(epochs: float, epoch_batches: int) -> None:
    agenda = make_agenda("gradual", 5, 0, epochs, epoch_batches)
    ramp = [
        (stop.phase_start + at, how_far)
        for stop in agenda.stops
        if isinstance(stop, Epoch)
        for at, how_far in stop.ramp
    ]
    assert ramp == sorted(ramp)
    assert ramp[-1][1] == 1
    assert ramp[-1][0] <= 0.75 * agenda.batches
    assert all(0 <= at < stop.batches for stop in agenda.stops if isinstance(stop, Epoch) for at, _ in stop.ramp)


@given(
    st.sampled_from(["one-shot", "iterative", "gradual"]), st.floats(0, 0.999), st.floats(0.01, 1), st.floats(0.01, 1)
)
def test_amounts_rise_to_the_final_one(schedule, final: float, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert amount_at(schedule, final, low) <= amount_at(schedule, final, high) + 1e-12
    assert amount_at(schedule, final, 1.0) == final
    assert 0 <= amount_at(schedule, final, low) < 1


def test_iterative_cuts_remove_the_same_share_of_what_is_left() -> None:
    left = [1 - amount_at("iterative", 0.9, i / 4) for i in range(5)]
    ratios = [b / a for a, b in pairwise(left)]
    assert ratios == pytest.approx([ratios[0]] * 4)


@pytest.mark.parametrize(
    ("finetune", "original", "epochs"), [(3, None, 3), (0, None, 0), (1.5, 10, 1.5), ("15%", 20, 3), ("150%", 2, 3)]
)
def test_epochs_are_a_number_or_a_share(finetune: float | str, original: float | None, epochs: float) -> None:
    assert parse_epochs(finetune, original) == pytest.approx(epochs)


@pytest.mark.parametrize(
    ("original", "epochs", "words"),
    [
        (None, 2, "2 epochs by default (how long the model was trained is not known)"),
        (0, 2, "2 epochs by default"),
        (100, 15, "15 epochs by default (15% of the 100 that the model was trained for"),
        (3, 1, "1 epoch by default (15% of the 3"),
    ],
)
def test_fine_tuning_has_a_default_that_tells_what_it_took(original: float | None, epochs: float, words: str) -> None:
    chosen, note = default_epochs(original)
    assert chosen == epochs
    assert words in note


@pytest.mark.parametrize(
    ("finetune", "message"),
    [
        ("15%", "original_epochs"),
        ("15", "percentage"),
        ("many%", "percentage"),
        (-1, "0 or more"),
        (float("nan"), "0 or"),
    ],
)
def test_epochs_that_make_no_sense_are_refused(finetune: float | str, message: str) -> None:
    with pytest.raises(secateur.UsageError, match=message):
        parse_epochs(finetune, None)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@given(st.integers(1, 300), st.floats(0, 1))
def test_the_learning_rate_warms_up_and_falls(schedule, steps: int, warmup: float) -> None:
    recipe = secateur.Recipe(lr_schedule=schedule, warmup=warmup)
    factors = [learning_rate_factor(recipe, step, steps) for step in range(steps)]
    assert all(0 < factor <= 1 for factor in factors)
    top = factors.index(max(factors))
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)


@pytest.mark.parametrize(("steps", "scale"), [(1, 0.1), (10, 0.1), (31, 0.31), (100, 1.0), (9999, 1.0)])
def test_a_repaired_model_takes_smaller_steps_where_there_are_few(steps: int, scale: float) -> None:
    assert finetune_scale(secateur.Recipe(), True, steps) == pytest.approx(scale)
    assert finetune_scale(secateur.Recipe(), False, steps) == 1
    assert finetune_scale(secateur.Recipe(finetune_scale=0.7), True, steps) == 0.7


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adm"},
        {"optimizer": torch.optim.AdamW},
        {"optimizer": torch.optim.SGD([torch.zeros(1)], 0.1)},
        {"lr": "1e-3"},
        {"lr": 0},
        {"lr": float("nan")},
        {"warmup": 1.5},
        {"distill": -1},
        {"temperature": 0},
        {"weight_decay": -1},
        {"lr_schedule": "step"},
        {"temperature": 4.0, "distill": 0},
        {"lr": 0.1, "optimizer": lambda model: torch.optim.Adam(model.parameters())},
        {"weight_decay": 0.1, "optimizer": lambda model: torch.optim.Adam(model.parameters())},
    ],
)
def test_recipes_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(secateur.UsageError, match=next(iter(settings))):
        secateur.Recipe(**settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model: torch.optim.LBFGS(model.parameters()), "LBFGS"),
        (lambda model: "adam", "returned a str"),
        (lambda model: torch.optim.Adam([torch.zeros(1, requires_grad=True)]), "none of the model's parameters"),
    ],
)
def test_optimizer_functions_are_checked(make, message: str) -> None:
    with pytest.raises(secateur.UsageError, match=message):
        make_optimizer(secateur.Recipe(optimizer=make), torch.nn.Linear(2, 2))
