"""`prune(repair=…)`: after each cut, what is left is fitted to the model as it was, without labels; then fine-tuned."""

import copy
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.utils.data import DataLoader

import secateur
import secateur.loop.repairs
from tests.support.channel_runs import QUICK, assert_same
from tests.support.models import ConvNet, blobs, trained_convnet

CUTS: dict[str, dict[str, Any]] = {"zeros": {"amount": 0.9}, "2:4": {"pattern": "2:4"}, "channels": {"channels": 0.5}}
IMAGES = blobs().tensors[0]


@pytest.fixture
def ordered() -> dict[str, Any]:
    """Whose first examples are known."""
    data = {"train_data": DataLoader(blobs(), 32), "eval_data": DataLoader(blobs(128, seed=1), 64)}
    return {**data, "recipe": QUICK, "progress": False}


def repaired_by_hand(model: nn.Module, result: secateur.Result, examples: int) -> nn.Module:
    dense = copy.deepcopy(model)
    pruned = secateur.apply(copy.deepcopy(model), result.plan or result.masks)
    secateur.repair(pruned, result.plan or result.masks, [IMAGES], dense=dense, examples=examples, progress=False)
    return pruned


def assert_same_values(model: nn.Module, expected: nn.Module) -> None:
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, msg=name)


@pytest.mark.parametrize("cut", CUTS)
def test_the_repaired_model_is_the_one_that_repair_makes(cut: str, ordered: dict[str, Any]) -> None:
    model = trained_convnet()
    result = secateur.prune(model, repair=128, finetune=0, **CUTS[cut], **ordered)
    assert [(record.stop, record.phase) for record in result.records[1:]] == [("cut", "cut"), ("repaired", "repair")]
    assert_same_values(result.model, repaired_by_hand(model, result, 128))
    assert result.repaired == result.after > 0.95
    assert result.to_json()["repaired"] == result.repaired
    assert "repaired  " in str(result)
    assert result.size_after.parameters == result.records[1].size.parameters


def test_it_is_on_by_default_and_0_turns_it_off(ordered: dict[str, Any]) -> None:
    model = trained_convnet()
    result = secateur.prune(model, channels=0.8, finetune=1, **ordered)
    assert [record.phase for record in result.records] == ["before", "cut", "repair", "fine-tune"]
    plain = secateur.prune(model, channels=0.8, repair=0, finetune=1, **ordered)
    assert [record.phase for record in plain.records] == ["before", "cut", "fine-tune"]
    assert plain.repaired is None
    assert plain.right_after == result.right_after < result.repaired


@pytest.mark.parametrize("cut", CUTS)
def test_inputs_without_labels_are_enough(cut: str, ordered: dict[str, Any]) -> None:
    model = trained_convnet()
    data = {"calibration": [IMAGES], "eval_data": ordered["eval_data"], "progress": False}
    result = secateur.prune(model, finetune=0, **CUTS[cut], **data)
    assert [record.stop for record in result.records] == ["before", "cut", "repaired"]
    assert [record.epochs for record in result.records] == [0, 0, 0]
    assert_same_values(result.model, repaired_by_hand(model, result, 512))


def test_without_training_data_nothing_is_fine_tuned(ordered: dict[str, Any]) -> None:
    result = secateur.prune(
        trained_convnet(), 0.9, calibration=[IMAGES], eval_data=ordered["eval_data"], progress=False
    )
    assert [record.phase for record in result.records] == ["before", "cut", "repair"]
    assert result.note == "Not fine-tuned, because there is no train_data."


def test_calibration_goes_before_the_training_data(ordered: dict[str, Any]) -> None:
    model = trained_convnet()
    noise = DataLoader([(torch.randn(4, 4, 4), 0) for _ in range(64)], 32)
    given = secateur.prune(model, 0.9, calibration=[IMAGES], finetune=0, **{**ordered, "train_data": noise})
    assert_same_values(given.model, repaired_by_hand(model, given, 512))


@pytest.mark.parametrize(
    ("options", "highest"), [({}, 0.01), ({"repair": 0}, 0.1), ({"schedule": "gradual"}, 0.1)], ids=str
)
def test_a_few_steps_after_a_repair_are_small(options: dict[str, Any], highest: float, ordered: dict[str, Any]) -> None:
    rates: list[float] = []

    def watched(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        optimizer.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
        return optimizer

    recipe = secateur.Recipe(optimizer=watched, warmup=0)
    secateur.prune(trained_convnet(), 0.9, finetune=1, **{**ordered, "recipe": recipe, **options})
    assert max(rates) == rates[0] == pytest.approx(highest)


def test_every_cut_of_several_is_repaired(ordered: dict[str, Any]) -> None:
    for cut in ({"amount": 0.9}, {"channels": 0.75}):
        result = secateur.prune(trained_convnet(), schedule="iterative", cuts=2, finetune=2, **cut, **ordered)
        assert [record.phase for record in result.records[1:]] == ["cut", "repair", "fine-tune"] * 2
        assert result.records[2].stop == "repaired 1/2"
        if not result.plan:
            assert result.size_after.nonzeros < 0.2 * result.size_after.parameters


def test_the_gradual_schedule_is_repaired_at_its_last_cut(
    ordered: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    repairs = []

    def counted(model: nn.Module, masks: secateur.Masks, *args: Any, **options: Any) -> secateur.Repaired:
        repairs.append(masks.sparsity)
        return secateur.repair(model, masks, *args, **options)

    monkeypatch.setattr(secateur.loop.repairs, "repair", counted)
    result = secateur.prune(trained_convnet(), 0.9, schedule="gradual", finetune=2, **ordered)
    assert [record.phase for record in result.records] == ["before", "fine-tune", "fine-tune"]
    assert repairs == [result.masks.sparsity]
    assert result.repaired is None
    assert result.size_after.nonzeros < 0.2 * result.size_after.parameters


def noisy_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """What the model is given depends on where random numbers have got to."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images + 0.1 * torch.randn_like(images)), labels)


@pytest.mark.parametrize("cut", [{"amount": 0.9, "schedule": "gradual"}, {"channels": 0.5, "schedule": "iterative"}])
def test_interrupted_at_every_stop_it_ends_with_the_same_weights(
    cut: dict[str, Any], tmp_path: Path, loaders: dict[str, DataLoader]
) -> None:
    cuts = {"cuts": 2} if cut["schedule"] == "iterative" else {}
    options = {"finetune": 2, "recipe": QUICK, "progress": False, "loss": noisy_loss, **cuts, **cut, **loaders}
    whole = secateur.prune(trained_convnet(), **options)
    metric, interruptions = interrupting_the_first_time(), 0
    while True:
        try:
            resumed = secateur.prune(trained_convnet(), run_dir=tmp_path, metric=metric, **options)
            break
        except KeyboardInterrupt:
            interruptions += 1
    assert interruptions == len({record.stop for record in whole.records})
    assert_same(resumed, whole)
    again = secateur.prune(trained_convnet(), run_dir=tmp_path, metric=metric, **options)
    assert again.repaired == whole.repaired


def interrupting_the_first_time() -> Callable[[nn.Module, Iterable[Any]], float]:
    """Ctrl-C whenever a model is measured that has not been measured before."""
    seen = set()

    def accuracy(model: nn.Module, data: Iterable[Any]) -> float:
        measured = secateur.loop.task.accuracy(model, data)
        weights = sum(float(parameter.double().abs().sum()) for parameter in model.parameters())
        if weights not in seen:
            seen.add(weights)
            raise KeyboardInterrupt
        return measured

    accuracy.__qualname__ = "accuracy"
    return accuracy


def test_ctrl_c_in_a_repair_keeps_what_was_before_the_cut(
    ordered: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"channels": 0.5, "finetune": 1, **ordered}
    whole = secateur.prune(trained_convnet(), **options)
    with monkeypatch.context() as patched:
        patched.setattr(secateur.loop.repairs, "repair", lambda *args, **options: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            secateur.prune(trained_convnet(), run_dir=tmp_path, **options)
    assert [state.name for state in tmp_path.glob("stop-*")] == ["stop-0001"]
    assert_same(secateur.prune(trained_convnet(), run_dir=tmp_path, **options), whole)


def test_another_repair_is_another_run(tmp_path: Path, ordered: dict[str, Any]) -> None:
    def run(**options: Any) -> secateur.Result:
        data = {"calibration": DataLoader(IMAGES, 64, shuffle=True), **ordered}
        return secateur.prune(trained_convnet(), 0.9, finetune=0, run_dir=tmp_path, **{**data, **options})

    first = run()
    assert run().records == first.records, "a loader that shuffles is the same one"
    with pytest.raises(secateur.UsageError, match="repair was 512, now 64"):
        run(repair=64)
    with pytest.raises(secateur.UsageError, match="calibration was"):
        run(calibration=[IMAGES + 1])
    with pytest.raises(secateur.UsageError, match="calibration was"):
        run(calibration=None)


def test_in_mixed_precision_it_is_fitted_in_full_precision(ordered: dict[str, Any]) -> None:
    model = trained_convnet()
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    result = secateur.prune(model, channels=0.5, finetune=0, accelerator=accelerator, **ordered)
    AcceleratorState._reset_state(reset_partial_state=True)
    assert_same_values(result.model, repaired_by_hand(model, result, 512))


def test_a_run_that_can_do_without_a_repair_says_so_and_goes_on(
    ordered: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: Any, **options: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(secateur.loop.repairs, "repair", failing)
    with pytest.warns(secateur.SecateurWarning, match=r"not repaired \(.*no such kernel.*\); repair=0 leaves it out"):
        result = secateur.prune(trained_convnet(), 0.9, finetune=0, **ordered)
    assert result.repaired == result.right_after
    with pytest.raises(RuntimeError, match="no such kernel"):
        secateur.prune(trained_convnet(), 0.9, finetune=0, calibration=[IMAGES], **ordered)


def test_one_example_is_too_few_to_repair_with(ordered: dict[str, Any]) -> None:
    data = {**ordered, "train_data": DataLoader(blobs(1), 1)}
    with pytest.warns(secateur.SecateurWarning, match="not repaired"):
        secateur.prune(trained_convnet(), 0.9, finetune=0, **data)


WRONG = [
    ({"repair": -1}, "repair is -1; give a number of examples such as 512, or 0"),
    ({"repair": True}, "repair is True"),
    ({"repair": 0, "calibration": [IMAGES]}, "calibration is what a repair learns from"),
    ({"calibration": IMAGES.numpy}, "calibration data is a builtin"),
    ({"calibration": []}, "has 0 examples to learn from"),
    ({"calibration": [(IMAGES, torch.zeros(256))]}, "fails on the calibration data.*its inputs alone"),
    ({"train_data": None}, "no train_data, and finetune needs some"),
    ({"train_data": None, "calibration": [IMAGES]}, "no train_data, and finetune needs some"),
    ({"train_data": None, "finetune": 0}, "There is no data"),
    ({"train_data": None, "finetune": 0, "score": "taylor", "calibration": [IMAGES]}, 'the score "taylor" needs some'),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_cannot_be_repaired_with_is_refused_before_it_costs_time(
    options: dict[str, Any], message: str, ordered: dict[str, Any]
) -> None:
    def never(model: nn.Module, data: Iterable[Any]) -> float:
        pytest.fail("it went as far as measuring")

    with pytest.raises(secateur.UsageError, match=message):
        secateur.prune(ConvNet(), 0.5, **{"metric": never, "finetune": 1, **ordered, **options})
