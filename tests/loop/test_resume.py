"""A run goes on after kill -9, Ctrl-C, a full disk and a NaN loss, and ends where it would have ended anyway."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, WeightedRandomSampler

import secateur
import secateur.loop.task
from tests.support import killable
from tests.support.models import ConvNet, blobs

KILLS = 24
QUICK = secateur.Recipe(lr=3e-3, distill=0.3)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> secateur.Result:
    return killable.run(tmp_path_factory.mktemp("uninterrupted"))


def assert_same(result: secateur.Result, expected: secateur.Result) -> None:
    assert result.masks == expected.masks
    assert repr(result.histogram) == repr(expected.histogram)  # NaN is not equal to itself
    assert [record.metric for record in result.records] == [record.metric for record in expected.records]
    for name, value in expected.model.state_dict().items():
        assert torch.equal(result.model.state_dict()[name], value), name


def test_killed_at_random_it_ends_with_the_same_masks_and_weights(
    uninterrupted: secateur.Result, tmp_path: Path
) -> None:
    epoch_seconds = max(record.seconds for record in uninterrupted.records)
    chance = random.Random(0)
    kills = runs = 0
    while kills < KILLS:
        folder = tmp_path / f"run-{runs}"
        for _attempt in range(200):
            process = killable.start(folder)
            process.join(timeout=chance.uniform(0, 4 * epoch_seconds))
            if process.is_alive():
                process.kill()
                process.join()
                kills += 1
            if (folder / "secateur.json").exists():
                break
        assert_same(killable.run(folder), uninterrupted)
        assert not list(folder.glob("stop-*")), "a finished run leaves its result only"
        runs += 1


def test_at_most_one_stop_is_lost(uninterrupted: secateur.Result, tmp_path: Path) -> None:
    process = killable.start(tmp_path)
    while not (tmp_path / "stop-0003").exists():
        time.sleep(0.001)
    process.kill()
    process.join()
    state = max(tmp_path.glob("stop-????"))  # between the new state and the end of the old one, there are two
    records = json.loads((state / "progress.json").read_text())
    assert [record["metric"] for record in records] == [r.metric for r in uninterrupted.records[: len(records)]]
    assert len(records) >= 3
    assert_same(killable.run(tmp_path), uninterrupted)


def test_the_old_state_stays_until_the_new_one_is_in_place(
    tmp_path: Path, loaders: dict[str, DataLoader], monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def interrupted_rename(self: Path, target: Path) -> Path:
        if target.name == "stop-0003":
            assert (tmp_path / "stop-0002").is_dir()
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupted_rename)
        with pytest.raises(KeyboardInterrupt):
            prune(tmp_path, loaders)
    assert [path.name for path in tmp_path.glob("stop-*")] == ["stop-0002"]
    assert len(prune(tmp_path, loaders).records) == 4


def test_ctrl_c_keeps_the_last_stop(uninterrupted: secateur.Result, tmp_path: Path) -> None:
    process = killable.start(tmp_path)
    while not (tmp_path / "stop-0002").exists():
        time.sleep(0.001)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert not list(tmp_path.glob("*.partial"))
    assert_same(killable.run(tmp_path), uninterrupted)


@pytest.mark.parametrize("measurements", [0, 3, 9])
def test_a_full_disk_loses_nothing(uninterrupted: secateur.Result, tmp_path: Path, measurements: int) -> None:
    message = killable.run_with_full_disk(tmp_path, measurements)
    assert "could not be written" in message
    assert "MB are free" in message
    assert "\n" not in message
    states = [state.name for state in tmp_path.glob("stop-*")]
    assert states == ([f"stop-{measurements:04d}"] if measurements else []), "the state before is intact"
    assert_same(killable.run(tmp_path), uninterrupted)


def test_a_finished_run_returns_its_result_without_training(
    uninterrupted: secateur.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killable.run(tmp_path)
    monkeypatch.setattr("secateur.loop.tuner.Tuner.train_epoch", lambda *_, **__: pytest.fail("it trained again"))
    monkeypatch.setattr("secateur.loop.tuner.Tuner.evaluate", lambda *_: pytest.fail("it was measured again"))
    again = killable.run(tmp_path)
    assert_same(again, uninterrupted)
    assert str(again).splitlines()[-1] == str(uninterrupted).splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.safetensors",
        "run.json",
        "secateur.json",
    ]


def prune(folder: Path, loaders: dict[str, DataLoader], **options: Any) -> secateur.Result:
    settings = {"train": 2, "repair": 0, "finetune": 1, "progress": False, "recipe": QUICK, **loaders, **options}
    torch.manual_seed(0)
    return secateur.prune(ConvNet(), settings.pop("amount", 0.5), run_dir=folder, **settings)


def interrupt_every_second_time(metric: Callable[..., float]) -> Callable[..., float]:
    calls = 0

    def interrupting(model: torch.nn.Module, data: Any) -> float:
        nonlocal calls
        calls += 1
        if calls % 2 == 0:
            raise KeyboardInterrupt
        return metric(model, data)

    return interrupting


def test_a_loss_that_turns_nan_stops_and_keeps_the_last_state(tmp_path: Path, loaders: dict[str, DataLoader]) -> None:
    calls = 0

    def failing_loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1]) * (float("nan") if calls == 12 else 1)

    with pytest.raises(secateur.SecateurError) as caught:
        prune(tmp_path, loaders, loss=failing_loss)
    assert "The loss became nan at batch 4 of train epoch 2/2" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "Lower lr" in str(caught.value)
    assert [state.name for state in tmp_path.glob("stop-*")] == ["stop-0001"]
    lower = prune(tmp_path, loaders, loss=failing_loss, recipe=secateur.Recipe(lr=1e-3))
    assert [record.phase for record in lower.records] == ["train", "train", "cut", "fine-tune"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"amount": 0.6}, "amount was 0.5, now 0.6"),
        ({"seed": 1}, "seed was 0, now 1"),
        ({"finetune": 2}, "finetune was 1.0, now 2.0"),
        ({"train_data": DataLoader(blobs(), 16)}, "batches per epoch was 8, now 16"),
    ],
)
def test_another_run_in_the_same_folder_is_refused(
    tmp_path: Path, loaders: dict[str, DataLoader], change: dict[str, Any], message: str
) -> None:
    prune(tmp_path, loaders)
    before = (tmp_path / "secateur.json").read_bytes()
    with pytest.raises(secateur.UsageError, match=message):
        prune(tmp_path, loaders, **change)
    assert (tmp_path / "secateur.json").read_bytes() == before


@pytest.mark.parametrize(
    ("schedule", "score"),
    [("one-shot", "l1"), ("iterative", "l1"), ("gradual", "l1"), ("one-shot", "taylor"), ("iterative", "taylor")],
)
def test_every_schedule_goes_on_from_every_stop(
    tmp_path: Path, loaders: dict[str, DataLoader], schedule: str, score: str
) -> None:
    options = {"schedule": schedule, "finetune": 3, "score": score, "amount": 0.8}
    if schedule == "iterative":
        options["cuts"] = 2
    whole = prune(tmp_path / "whole", loaders, **options)
    interrupting = interrupt_every_second_time(secateur.loop.task.accuracy)
    for _ in whole.records[1:]:  # every stop but the first is interrupted once
        with pytest.raises(KeyboardInterrupt):
            prune(tmp_path / "parts", loaders, metric=interrupting, **options)
    assert_same(prune(tmp_path / "parts", loaders, metric=interrupting, **options), whole)


def test_the_same_run_may_be_written_differently(tmp_path: Path, loaders: dict[str, DataLoader]) -> None:
    first = prune(tmp_path, loaders, amount=0.5, keep={"conv", "output"}, finetune=1)
    again = prune(tmp_path, loaders, amount="50%", keep=("output", "conv"), finetune=1.0)
    assert_same(again, first)


def test_training_does_not_take_a_pruning_run_for_its_own(tmp_path: Path, loaders: dict[str, DataLoader]) -> None:
    prune(tmp_path, loaders)
    with pytest.raises(secateur.UsageError, match=r"amount was 0\.5, now None"):
        secateur.train(ConvNet(), 2, run_dir=tmp_path, progress=False, recipe=QUICK, **loaders)


def test_a_finished_run_does_not_answer_for_another_recipe_or_model(
    tmp_path: Path, loaders: dict[str, DataLoader]
) -> None:
    first = prune(tmp_path / "a", loaders)
    with pytest.raises(secateur.UsageError, match="recipe was"):
        prune(tmp_path / "a", loaders, recipe=secateur.Recipe(lr=1e-4))
    assert prune(tmp_path / "a", loaders, tolerance=0.5).tolerance == 0.5
    options = {"finetune": 0, "progress": False, **loaders, "run_dir": tmp_path / "b"}
    secateur.prune(first.model, 0.9, **options)
    with pytest.raises(secateur.UsageError, match="weights was"):
        secateur.prune(ConvNet(), 0.9, **options)


def test_a_learning_rate_can_be_lowered_on_the_way(tmp_path: Path, loaders: dict[str, DataLoader]) -> None:
    """What the message about a diverged loss advises."""
    with pytest.raises(secateur.SecateurError, match="Lower lr"):
        prune(tmp_path, loaders, train=0, recipe=secateur.Recipe(optimizer="sgd", lr=1e20))
    assert (tmp_path / "stop-0002").is_dir()
    lowered = prune(tmp_path, loaders, train=0, recipe=secateur.Recipe(optimizer="sgd", lr=1e-3))
    assert all(parameter.abs().max() < 10 for parameter in lowered.model.parameters())


def test_samplers_with_a_generator_of_their_own_are_resumed(tmp_path: Path, loaders: dict[str, DataLoader]) -> None:
    def sampled(folder: str, metric: Any = None) -> secateur.Result:
        generator = torch.Generator().manual_seed(11)
        sampler = WeightedRandomSampler([1.0] * 256, 256, generator=generator)
        state = generator.get_state()
        data = {**loaders, "train_data": DataLoader(blobs(), 32, sampler=sampler)}
        try:
            return prune(tmp_path / folder, data, **({"metric": metric} if metric else {}))
        finally:
            assert torch.equal(generator.get_state(), state), "the user's generator is as it was"

    whole = sampled("whole")
    interrupting = interrupt_every_second_time(secateur.loop.task.accuracy)
    for _ in whole.records[1:]:
        with pytest.raises(KeyboardInterrupt):
            sampled("parts", interrupting)
    assert_same(sampled("parts", interrupting), whole)


def test_another_number_of_processes_is_refused(tmp_path: Path, loaders: dict[str, DataLoader]) -> None:
    prune(tmp_path, loaders)
    stored = json.loads((tmp_path / "run.json").read_text())
    stored["settings"]["processes"] = 2
    (tmp_path / "run.json").write_text(json.dumps(stored))
    with pytest.raises(secateur.UsageError, match="processes was 2, now 1"):
        prune(tmp_path, loaders)


def test_damaged_states_are_refused_in_one_sentence(tmp_path: Path) -> None:
    process = killable.start(tmp_path)
    while not (tmp_path / "stop-0010").exists():
        time.sleep(0.001)
    process.kill()
    process.join()
    state = max(tmp_path.glob("stop-????"))
    for name in ["progress.json", "masks.safetensors", "model.safetensors", "optimizer.bin"]:
        file = state / name
        original = file.read_bytes()
        file.write_bytes(original[: len(original) // 2])
        with pytest.raises(secateur.SecateurError, match=r"cannot be read .*delete .* to start the run again"):
            killable.run(tmp_path)
        file.write_bytes(original)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(secateur.SecateurError, match=r"run\.json cannot be read"):
        killable.run(tmp_path)


def interrupted(folder: Path, loaders: dict[str, DataLoader]) -> Path:
    """The state after the first stop of a run that was interrupted in the second."""
    interrupting = interrupt_every_second_time(secateur.loop.task.accuracy)
    interrupting.__qualname__ = "accuracy"
    with pytest.raises(KeyboardInterrupt):
        prune(folder, loaders, metric=interrupting)
    (state,) = folder.glob("stop-*")
    return state


def refusal(folder: Path, loaders: dict[str, DataLoader]) -> str:
    with pytest.raises(
        secateur.SecateurError, match=r"cannot be read \(.*\); delete .* to start the run again\.$"
    ) as caught:
        prune(folder, loaders)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_a_run_does_not_go_on_without_its_random_state(tmp_path: Path, loaders: dict[str, DataLoader]) -> None:
    file = interrupted(tmp_path, loaders) / "random_states_0.pkl"
    states = torch.load(file, weights_only=False)
    for damaged in ({**states, "torch_manual_seed": torch.zeros(3)}, {**states, "step": "x"}):
        torch.save(damaged, file)
        assert "(random_states_0.pkl holds no random state)" in refusal(tmp_path, loaders)
    for damage in (lambda: file.write_bytes(b"garbage"), file.unlink):
        damage()
        assert "(random_states_0.pkl holds no random state)" in refusal(tmp_path, loaders)


def test_a_bad_optimizer_file_is_told_in_our_words(tmp_path: Path, loaders: dict[str, DataLoader]) -> None:
    file = interrupted(tmp_path, loaders) / "optimizer.bin"
    for damaged in ({}, {"state": {}, "param_groups": []}, print):
        torch.save(damaged, file)
        assert "(its model or its optimizer is damaged, or of another run)" in refusal(tmp_path, loaders)
    file.write_bytes(b"garbage" * 100)
    assert "(its model or its optimizer is damaged, or of another run)" in refusal(tmp_path, loaders)


@pytest.mark.parametrize("name", ["progress.json", "model.safetensors", "optimizer.bin", "random_states_0.pkl"])
def test_a_state_is_not_waited_for(name: str, tmp_path: Path, loaders: dict[str, DataLoader]) -> None:
    file = interrupted(tmp_path, loaders) / name
    file.unlink()
    os.mkfifo(file)
    assert f"({name} is not a regular file)" in refusal(tmp_path, loaders)


def test_a_link_is_no_state(tmp_path: Path, loaders: dict[str, DataLoader]) -> None:
    (tmp_path / "users_own").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stop-0009").symlink_to(tmp_path / "users_own")
    (tmp_path / "run" / "stop-0001.partial").symlink_to(tmp_path / "users_own")
    with pytest.raises(secateur.SecateurError, match=r"stop-0001 could not be written"):
        prune(tmp_path / "run", loaders)
    (tmp_path / "run" / "stop-0001.partial").unlink()
    assert len(prune(tmp_path / "run", loaders).records) == 4
    assert not list((tmp_path / "users_own").iterdir())


def test_the_dense_model_is_read_from_a_whole_file(tmp_path: Path, loaders: dict[str, DataLoader]) -> None:
    dense = tmp_path / "dense.safetensors"
    for damage in (lambda: dense.write_bytes(b"garbage"), lambda: os.mkfifo(dense)):
        damage()
        with pytest.raises(secateur.SecateurError, match=r"dense\.safetensors cannot be read .*; delete .* to start"):
            prune(tmp_path, loaders, train=0)
        dense.unlink()


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path, loaders: dict[str, DataLoader]) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(secateur.UsageError, match="cannot be made a folder"):
        prune(tmp_path / "taken", loaders)
    assert (tmp_path / "taken").read_text() == "mine"
