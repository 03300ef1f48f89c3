"""`prune(channels=…)` with a run folder: it goes on after any interruption, and ends as if there had been none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import secateur
from secateur.loop.display import Display
from secateur.loop.result import Record
from secateur.loop.task import accuracy
from tests.support.channel_runs import DISTILLED, QUICK, Loaders, assert_same, prune, widths
from tests.support.models import ConvNet, blobs


def run(folder: Path, loaders: Loaders, **options: Any) -> secateur.Result:
    """The same call every time, on a model that every call makes anew."""
    torch.manual_seed(0)
    return prune(ConvNet(), run_dir=folder, **{"train": 2, "finetune": 2, "recipe": DISTILLED, **loaders, **options})


def noisy_loss(model: nn.Module, batch: Any) -> Tensor:
    """Draws from the global random state, which a resumed run has to find where it was."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images + 0.1 * torch.randn_like(images)), labels)


def interrupted_every_second_time() -> Callable[[nn.Module, Iterable[Any]], float]:
    calls = 0

    def metric(model: nn.Module, data: Iterable[Any]) -> float:
        nonlocal calls
        calls += 1
        if calls % 2 == 0:
            raise KeyboardInterrupt
        return accuracy(model, data)

    metric.__name__ = metric.__qualname__ = "accuracy"
    return metric


class Interrupting(Display):
    """Interrupts once, at the end of a stop: after it was measured, before it is saved."""

    def __init__(self, stop: int) -> None:
        super().__init__(enabled=False)
        self.left = stop

    def end(self, record: Record) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("schedule", "score", "scope"),
    [("one-shot", "l1", "layer"), ("iterative", "l1", "global"), ("iterative", "taylor", "layer")],
)
def test_interrupted_at_every_stop_it_ends_with_the_same_weights(
    tmp_path: Path, loaders: Loaders, schedule: str, score: str, scope: str
) -> None:
    options = {"schedule": schedule, "score": score, "scope": scope, "loss": noisy_loss}
    if schedule == "iterative":
        options["cuts"] = 2
    whole = run(tmp_path / "whole", loaders, **options)
    metric = interrupted_every_second_time()
    interruptions = 0
    while True:
        try:
            resumed = run(tmp_path / "parts", loaders, metric=metric, **options)
            break
        except KeyboardInterrupt:
            interruptions += 1
    assert interruptions == len(whole.records) - 1, "every stop but the last was interrupted in"
    assert_same(resumed, whole)


def test_a_cut_that_was_not_saved_is_made_again(tmp_path: Path, loaders: Loaders) -> None:
    options = {"schedule": "iterative", "cuts": 2, "train": 1, "loss": noisy_loss}
    whole = run(tmp_path / "whole", loaders, **options)
    stops = [i + 1 for i, record in enumerate(whole.records) if record.phase == "cut"]
    assert len(stops) == 2
    for stop in stops:
        folder = tmp_path / f"interrupted-{stop}"
        with pytest.raises(KeyboardInterrupt):
            run(folder, loaders, progress=Interrupting(stop), **options)
        assert [state.name for state in folder.glob("stop-*")] == [f"stop-{stop - 1:04d}"]
        assert_same(run(folder, loaders, **options), whole)


def test_an_untrained_run_goes_on_from_the_users_weights(tmp_path: Path, loaders: Loaders) -> None:
    trained = secateur.train(ConvNet(), 2, recipe=QUICK, progress=False, **loaders).model
    options = {"recipe": DISTILLED, "finetune": 2, **loaders}
    whole = prune(trained, **options)
    with pytest.raises(KeyboardInterrupt):
        prune(trained, run_dir=tmp_path, progress=Interrupting(3), **options)
    assert_same(prune(trained, run_dir=tmp_path, **options), whole)


def test_a_finished_run_returns_its_result_with_the_cut_model(tmp_path: Path, loaders: Loaders) -> None:
    first = run(tmp_path, loaders)

    def never(model: nn.Module, data: Iterable[Any]) -> float:
        pytest.fail("it was measured again")

    never.__qualname__ = "accuracy"
    again = run(tmp_path, loaders, metric=never)
    assert_same(again, first)
    assert widths(again.model) == (4, 16, 4)
    assert str(again) == str(first)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.safetensors",
        "run.json",
        "secateur.json",
    ]


def test_the_dense_teacher_is_kept_for_a_resumed_run(tmp_path: Path, loaders: Loaders) -> None:
    """Labels are all wrong in fine-tuning, so only the dense model can teach the cut one what is right."""
    images, labels = blobs().tensors
    wrong = {**loaders, "train_data": DataLoader(TensorDataset(images, (labels + 1) % 4), 32, shuffle=True)}
    dense = secateur.train(ConvNet(), 6, recipe=QUICK, progress=False, **loaders).model
    options = {"finetune": 6, "recipe": secateur.Recipe(lr=1e-2, distill=1.0), **wrong}
    with pytest.raises(KeyboardInterrupt):
        prune(dense, run_dir=tmp_path, progress=Interrupting(4), **options)
    assert (tmp_path / "dense.safetensors").exists()
    taught = prune(dense, run_dir=tmp_path, **options)
    assert taught.after > 0.9
    assert not (tmp_path / "dense.safetensors").exists()
    assert prune(dense, **{**options, "recipe": secateur.Recipe(lr=1e-2, distill=0)}).after < 0.1


OTHER_RUNS = [
    ({"channels": 0.6}, r"channels was 0\.5, now 0\.6"),
    ({"multiple_of": 4}, "multiple_of was None, now 4"),
    ({"scope": "global", "floor": 0.2}, "floor was 0.1, now 0.2"),
    ({"seed": 1}, "seed was 0, now 1"),
]


def test_another_run_in_the_same_folder_is_refused(tmp_path: Path, loaders: Loaders) -> None:
    run(tmp_path, loaders)
    before = (tmp_path / "secateur.json").read_bytes()
    for change, message in OTHER_RUNS:
        with pytest.raises(secateur.UsageError, match=message):
            run(tmp_path, loaders, **change)
    assert (tmp_path / "secateur.json").read_bytes() == before


def test_a_damaged_state_is_refused_in_one_sentence(tmp_path: Path, loaders: Loaders) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, loaders, progress=Interrupting(5))
    for name in ["plan.json", "progress.json", "model.safetensors", "optimizer.bin"]:
        file = tmp_path / "stop-0004" / name
        original = file.read_bytes()
        file.write_bytes(original[: len(original) // 2])
        with pytest.raises(
            secateur.SecateurError, match=r"cannot be read .*delete .* to start the run again"
        ) as caught:
            run(tmp_path, loaders)
        assert "\n" not in str(caught.value)
        file.write_bytes(original)
