"""`secateur prune` as a person meets it."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from secateur.base.text import byte_text
from secateur.checkpoint.reading import read_checkpoint
from secateur.commands.app import app
from secateur.loop.run_folder import load_run
from secateur.pages.run_report import load_report
from tests.commands.test_task_file import TASK
from tests.support.models import ConvNet


@pytest.fixture
def task(tmp_path: Path) -> Path:
    file = tmp_path / "task.py"
    file.write_text(TASK)
    return file


def prune(task: Path, *options: str, measure: str = "--no-measure") -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["prune", str(task), "-o", str(task.parent / "out"), measure, *options])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--channels", "50%"),
        ("--target", "params=40%"),
        ("--sparsity", "0.8"),
        ("--pattern", "2:4", "--keep", "output"),
    ],
    ids=lambda options: options[0],
)
def test_every_kind_of_pruning_is_one_option(task: Path, options: tuple[str, ...]) -> None:
    code, out, _ = prune(task, "--train", "1", "--finetune", "1", *options)
    assert code == 0
    assert "accuracy" in out
    stored = (task.parent / "out" / "model.safetensors").stat().st_size
    assert f"The pruned model is in {task.parent / 'out'} ({byte_text(stored)})" in out
    assert "channels" in (task.parent / "out" / "report.html").read_text(encoding="utf-8")
    result = load_run(task.parent / "out", ConvNet())
    assert (result.plan is None) == (options[0] in ("--sparsity", "--pattern"))
    assert (result.masks.zeros > 0) == (result.plan is None)


@pytest.mark.usefixtures("short_timings")
def test_the_run_is_measured_and_reported_and_measured_again(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(task.parent)
    command = [Path(task.name), "--train", "1", "--finetune", "1", "--channels", "0.5", "--json"]
    code, out, _ = prune(*command, measure="--measure")
    assert code == 0
    (measured,) = json.loads(out)["measurements"]["measurements"]
    assert set(measured["models"]) == {"dense", "out"}
    (latency,) = load_report("out").latencies
    assert latency.pruned.ratio == measured["models"]["out"]["ratio"]
    assert sum(load_report("out").histogram.removed) > 0
    again = CliRunner().invoke(app, ["measure", "out", "--batch", "2", "--batch", "3"])
    assert again.exit_code == 0, again.stderr
    assert "out/report.html" in again.stdout
    assert [latency.batch for latency in load_report("out").latencies] == [2, 3]


def test_zeros_are_stored_only_where_asked_for(task: Path) -> None:
    options = ("--train", "1", "--finetune", "1", "--sparsity", "0.9")
    out = task.parent / "out"
    assert prune(task, *options)[0] == 0
    packed, masks = (out / "model.safetensors").stat().st_size, read_checkpoint(out).masks
    assert load_report(out).file_bytes == packed
    assert prune(task, *options, "--dense")[0] == 0
    assert load_file(out / "model.safetensors").keys() == ConvNet().state_dict().keys()
    assert load_report(out).file_bytes == (out / "model.safetensors").stat().st_size > packed
    assert read_checkpoint(out).masks == masks
    assert load_run(out, ConvNet()).masks == masks


def test_packed_weights_are_not_taken_for_plain_ones(task: Path) -> None:
    prune(task, "--train", "1", "--finetune", "1", "--sparsity", "0.9")
    weights = str(task.parent / "out" / "model.safetensors")
    code, _, errors = prune(task, "--finetune", "1", "--from", weights, "--channels", "0.5")
    assert code == 2
    assert "holds packed weights without their zeros; load them with secateur.load" in errors


def test_the_target_is_met_and_told(task: Path) -> None:
    code, out, _ = prune(task, "--train", "1", "--finetune", "0", "--target", "macs=60%", "--json")
    assert code == 0
    outcome = json.loads(out)["outcome"]
    assert outcome["target"] == "macs=60%"
    assert outcome["reached"] <= outcome["asked"]
    plan = read_checkpoint(task.parent / "out").plan
    assert plan.macs[1] == outcome["reached"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--channels", "50%"), "--finetune 15% is a share of the epochs that the model was trained for"),
        ((), "Say how much to remove"),
        (("--channels", "50%", "--target", "macs=50%", "--finetune", "1"), "either channels=… or target=…"),
        (("--target", "latncy=0.5", "--finetune", "1"), "did you mean 'latency'"),
        (("--channels", "half", "--finetune", "1"), "give a fraction such as 0.9"),
        (("--channels", "0.5", "--finetune", "long"), "--finetune is 'long'"),
        (("--channels", "0.5", "--schedule", "twice", "--finetune", "1"), "twice"),
    ],
)
def test_a_call_that_cannot_work_says_so_in_a_sentence(task: Path, options: tuple[str, ...], message: str) -> None:
    code, _, errors = prune(task, *options)
    assert code == 2
    assert message.casefold() in errors.casefold()
    assert "Traceback" not in errors
    assert not (task.parent / "out" / "model.safetensors").exists()


def test_the_same_command_returns_the_finished_run(task: Path) -> None:
    first = prune(task, "--train", "1", "--finetune", "1", "--channels", "0.5")
    again = prune(task, "--train", "1", "--finetune", "1", "--channels", "0.5")
    assert first[:2] == again[:2]
