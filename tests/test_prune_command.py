"""`secateur prune` as a person meets it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from secateur.channel_plan import Plan
from secateur.cli import app
from secateur.run_folder import load_run
from tests.models import ConvNet
from tests.test_task_file import TASK


@pytest.fixture
def task(tmp_path: Path) -> Path:
    file = tmp_path / "task.py"
    file.write_text(TASK)
    return file


def prune(task: Path, *options: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["prune", str(task), "-o", str(task.parent / "out"), *options])
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
    assert "model.safetensors" in out
    result = load_run(task.parent / "out", ConvNet())
    assert (result.plan is None) == (options[0] in ("--sparsity", "--pattern"))
    assert (result.masks.zeros > 0) == (result.plan is None)


def test_the_target_is_met_and_told(task: Path) -> None:
    code, out, _ = prune(task, "--train", "1", "--finetune", "0", "--target", "macs=60%", "--json")
    assert code == 0
    outcome = json.loads(out)["outcome"]
    assert outcome["target"] == "macs=60%"
    assert outcome["reached"] <= outcome["asked"]
    plan = Plan.load(task.parent / "out" / "plan.json")
    assert plan.macs[1] == outcome["reached"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
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
