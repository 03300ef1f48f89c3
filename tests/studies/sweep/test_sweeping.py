"""`sweep`, one run after another: what it makes, what it goes on from, and what it refuses."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import secateur
from secateur import Channels, SecateurError, Target, UsageError, Zeros
from secateur.loop.run_folder import load_run
from secateur.loop.task import accuracy, classification_loss
from secateur.studies.sweep import one_run
from tests.support.models import trained_convnet
from tests.support.sweeping import assert_same_weights, small_sweep


def test_every_cut_with_every_seed_is_a_run_of_its_own(tmp_path: Path) -> None:
    found = small_sweep(tmp_path / "sweep", seeds=2)
    assert [run.name for run in found.runs] == ["zeros-80", "zeros-80-seed-1", "channels-50", "channels-50-seed-1"]
    assert found.verdict == "Complete: 4 runs."
    assert "channels-50" in str(found)
    for run in found.runs:
        stored = load_run(found.folder / run.name, trained_convnet())
        assert run.history is not None
        assert (stored.after, stored.before) == (run.history.after, found.dense.metric)
    zeros = load_run(found.folder / "zeros-80", trained_convnet())
    assert zeros.masks.sparsity == pytest.approx(0.8, abs=1e-3)


def test_a_run_of_a_sweep_is_the_run_that_prune_makes(tmp_path: Path) -> None:
    found = small_sweep(tmp_path / "sweep")
    from torch.utils.data import DataLoader

    from tests.support.models import blobs

    alone = secateur.prune(
        trained_convnet(),
        0.8,
        train_data=DataLoader(blobs(), 32, shuffle=True),
        eval_data=DataLoader(blobs(64, seed=1), 32),
        repair=0,
        finetune=1,
        progress=False,
    )
    swept = load_run(found.folder / "zeros-80", trained_convnet()).model
    for name, weight in alone.model.named_parameters():
        assert torch.equal(weight, swept.get_parameter(name))


def test_the_dense_model_is_trained_and_evaluated_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def counted(model: nn.Module, data: Any) -> float:
        asked.append("evaluated")
        return accuracy(model, data)

    found = small_sweep(tmp_path / "sweep", train=1, seeds=2, metric=counted)
    # One epoch of training, and for each of four runs the cut and one epoch of fine-tuning.
    assert len(asked) == 1 + 4 * 2
    assert {run.history.before for run in found.runs if run.history} == {found.dense.metric}


def test_an_interrupted_sweep_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    whole = small_sweep(tmp_path / "whole", seeds=2)
    calls = 0

    def interrupting(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 12:
            raise KeyboardInterrupt
        return classification_loss(model, batch)

    interrupting.__name__ = interrupting.__qualname__ = "classification_loss"
    with pytest.raises(KeyboardInterrupt):
        small_sweep(tmp_path / "sweep", seeds=2, loss=interrupting, recipe=secateur.Recipe(distill=0.5))
    finished = [folder.name for folder in (tmp_path / "sweep").iterdir() if (folder / "secateur.json").exists()]
    assert 1 < len(finished) < 5
    times = {name: (tmp_path / "sweep" / name / "secateur.json").stat().st_mtime_ns for name in finished}
    found = small_sweep(tmp_path / "sweep", seeds=2, recipe=secateur.Recipe(distill=0.5))
    assert not found.missing
    assert {name: (tmp_path / "sweep" / name / "secateur.json").stat().st_mtime_ns for name in finished} == times
    assert {run.name for run in whole.runs} == {run.name for run in found.runs}


def test_more_cuts_and_seeds_join_those_that_are_there(tmp_path: Path) -> None:
    first = small_sweep(tmp_path / "sweep")
    found = small_sweep(tmp_path / "sweep", [0.8, Channels(0.5), Zeros(pattern="2:4")], seeds=2)
    assert [run.name for run in found.runs][::2] == ["zeros-80", "channels-50", "2-4"]
    assert first.runs[0].history == found.runs[0].history
    assert_same_weights(first, secateur.Sweep(found.metric, found.dense, first.runs, folder=found.folder))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"finetune": 2}, "finetune was 1, now 2"),
        ({"recipe": secateur.Recipe(lr=0.1)}, "recipe was"),
        ({"amounts": {"zeros-80": Zeros(0.8, scope="layer")}}, "zeros-80 was"),
    ],
)
def test_what_was_made_otherwise_is_not_mixed_in(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    before = small_sweep(tmp_path / "sweep", [0.8])
    with pytest.raises(UsageError, match=told):
        small_sweep(tmp_path / "sweep", **({"amounts": [0.8]} | options))
    assert secateur.Sweep.load(tmp_path / "sweep").runs == before.runs


def test_another_dense_model_is_another_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_sweep(tmp_path / "sweep", [0.8])
    other = trained_convnet()
    with torch.no_grad():
        next(other.buffers()).add_(1)
    monkeypatch.setattr("tests.support.sweeping.trained_convnet", lambda: other)
    with pytest.raises(UsageError, match="weights was"):
        small_sweep(tmp_path / "sweep", [0.8, Channels(0.5)])


def test_a_run_that_fails_is_a_row_with_its_reason_and_the_others_go_on(tmp_path: Path) -> None:
    found = small_sweep(tmp_path / "sweep", [0.8, Target("params=5"), Channels(0.5)])
    zeros, failed, channels = found.runs
    assert zeros.finished
    assert channels.finished
    assert "cannot be reached" in failed.failure
    assert found.verdict == "INCOMPLETE: 1 of 3 runs missing (params-5)."
    assert failed.failure in str(found)
    assert "TargetUnreachable" in (found.folder / "params-5" / "log.txt").read_text()


def test_a_failed_run_is_tried_again(tmp_path: Path) -> None:
    def failing(model: nn.Module, batch: Any) -> torch.Tensor:
        if (tmp_path / "broken").exists() and any((weight == 0).sum() > 9 for weight in model.parameters()):
            raise RuntimeError("the disk of the data is gone")
        return classification_loss(model, batch)

    (tmp_path / "broken").touch()
    found = small_sweep(tmp_path / "sweep", loss=failing)
    assert "the disk of the data is gone" in found.runs[0].failure
    (tmp_path / "broken").unlink()
    assert not small_sweep(tmp_path / "sweep", loss=failing).missing


def test_where_nothing_ends_well_there_is_no_sweep(tmp_path: Path) -> None:
    with pytest.raises(SecateurError, match=r"No run has ended well\. params-5: .* cannot be reached"):
        small_sweep(tmp_path / "sweep", [Target("params=5")])


def test_a_model_that_cannot_be_evaluated_fails_at_once(tmp_path: Path) -> None:
    def broken(model: nn.Module, data: Any) -> float:
        raise RuntimeError("no such column")

    with pytest.raises(SecateurError, match="no such column"):
        small_sweep(tmp_path / "sweep", metric=broken)


def test_latencies_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[list[str]] = []

    def watched(models: Any, *args: Any, **kwargs: Any) -> secateur.Sheet:
        measured.append(list(models))
        return secateur.measure(models, *args, **kwargs)

    monkeypatch.setattr(one_run, "measure", watched)
    found = small_sweep(tmp_path / "sweep", measure=True, seeds=2)
    assert measured == [["dense", *(run.name for run in found.runs)]], "all of them in turn, in one go"
    assert found.timing("zeros-80") is not None
    assert found.timing("dense") is not None
    assert found.machines == (found.sheets[0].machine.name,)
    again = small_sweep(tmp_path / "sweep", [0.8, Channels(0.5), Channels(0.25)], measure=True, seeds=2)
    assert measured[1:] == [["dense", "channels-25", "channels-25-seed-1"]], "only what was new"
    assert again.timing("zeros-80") == found.timing("zeros-80")
    small_sweep(tmp_path / "sweep", measure=True, batch=2)
    assert measured[2:] == [["dense", "zeros-80", "channels-50"]], "another batch is another question"


def test_a_run_that_was_made_again_is_measured_again(tmp_path: Path) -> None:
    found = small_sweep(tmp_path / "sweep", measure=True)
    for name in ("zeros-80", "channels-50"):
        shutil.rmtree(found.folder / name)
    os.utime(found.folder)
    again = small_sweep(tmp_path / "sweep", measure=True)
    assert again.timing("zeros-80") != found.timing("zeros-80")


def test_cuts_that_measure_time_are_made_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A latency is met before others train, and the same run goes on beside them."""
    walked: list[tuple[str, str]] = []
    told = one_run._Telling.before

    def watched(self: Any, phase: str) -> None:
        walked.append((phase, "alone" if self._alone else "beside others"))
        told(self, phase)

    monkeypatch.setattr(one_run._Telling, "before", watched)
    monkeypatch.setattr("secateur.loop.pruners.plan_channels", _planned_without_timing)
    found = small_sweep(tmp_path / "sweep", [Target("latency=0.9")], schedule="iterative", cuts=2, finetune=2)
    assert not found.missing
    where = {phase: {place for each, place in walked if each == phase} for phase, _ in walked}
    # A run pauses at the stop that it cannot make here, and makes it in the other place.
    assert walked.count(("cut", "alone")) == 2
    assert ("cut", "beside others") in walked
    assert where["fine-tune"] == {"alone", "beside others"}


def _planned_without_timing(model: nn.Module, inputs: Any, request: Any, **options: Any) -> Any:
    plain = Channels(0.25) if isinstance(request, Target) else request
    return secateur.plan_channels(model, inputs, plain)


@pytest.mark.parametrize(
    ("amounts", "told"),
    [
        (0.9, "give a list of cuts"),
        ([], "give a list of cuts"),
        ([Channels(0.5), Channels(0.5, scope="global")], "Two of the versions are called channels-50"),
        ({"dense": 0.9}, "not 'dense'"),
        ({"../up": 0.9}, "use letters"),
    ],
)
def test_cuts_that_make_no_sweep_are_refused(tmp_path: Path, amounts: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        small_sweep(tmp_path / "sweep", amounts)


def test_versions_may_have_names(tmp_path: Path) -> None:
    named = {"even": Channels(0.5), "uneven": Channels(0.5, scope="global")}
    assert [run.name for run in small_sweep(tmp_path / "sweep", named).runs] == ["even", "uneven"]


def test_a_sweep_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = small_sweep(tmp_path / "sweep", measure=True)
    assert secateur.Sweep.load(found.folder) == found


def test_a_folder_without_a_sweep_is_told(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    with pytest.raises(UsageError, match=r"There is no sweep in .*did you mean"):
        secateur.Sweep.load(tmp_path / "swep")
