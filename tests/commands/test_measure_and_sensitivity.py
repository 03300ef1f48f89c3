"""`secateur measure` and `secateur sensitivity` as a person meets them: tables, JSON, mistakes, and Ctrl-C."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_model
from torch.utils.data import DataLoader
from typer.testing import CliRunner

import secateur
from secateur.bench.runtimes import RUNTIMES
from secateur.commands.app import app
from secateur.loop.run_folder import load_run
from secateur.pages.run_report import load_report
from tests.bench.test_runtimes import runtime_that_adds
from tests.commands.test_task_file import TASK
from tests.support.brief import SHORT_TIMINGS
from tests.support.forked import Program
from tests.support.models import ConvNet, blobs

COMMAND = SHORT_TIMINGS + "from secateur.commands.app import main; main()"


SHY = """
class Shy(ConvNet):
    def forward(self, x):
        if len(x) > 2:
            raise KeyError("no more")
        return super().forward(x)

def example_inputs():
    return next(iter(eval_data()))[0][:2]
"""


def run(*args: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return Program(COMMAND, *args, folder=cwd, environment={"COLUMNS": "80"}).wait()


def in_words(text: str) -> str:
    """Lines are broken to fit the terminal."""
    return " ".join(text.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task file, trained weights, and two finished runs."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("job")
    (folder / "task.py").write_text(TASK)
    data = {"train_data": DataLoader(blobs(), 32, shuffle=True), "eval_data": DataLoader(blobs(64, seed=1), 32)}
    model = secateur.train(ConvNet(), 2, progress=False, **data).model
    save_model(model, str(folder / "trained.safetensors"))
    options = {"repair": 0, "finetune": 0, "progress": False, **data}
    secateur.prune(model, 0.9, run_dir=folder / "runs" / "zeros-90", **options)
    secateur.prune(model, channels=0.5, run_dir=folder / "runs" / "channels-50", **options)
    return folder


def test_a_finished_run_is_loaded_into_the_dense_architecture(folder: Path) -> None:
    zeros = load_run(folder / "runs" / "zeros-90", ConvNet())
    assert zeros.masks == secateur.read_checkpoint(folder / "runs" / "zeros-90").masks
    assert (zeros.model.conv.weight == 0).sum() > 0
    channels = load_run(folder / "runs" / "channels-50", ConvNet())
    assert channels.plan is not None
    assert channels.model.conv.weight.shape[0] == 4
    assert channels.model(torch.randn(3, 4, 4, 4)).shape == (3, 4)


def test_measure_shows_the_dense_model_and_its_runs(folder: Path) -> None:
    done = run("measure", "task.py", "runs/zeros-90", "runs/channels-50", "--batch", 1, "--batch", 8, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    for words in (
        "eager, float32, batch 1, one thread",
        "eager, float32, batch 8, one thread",
        "zeros-90",
        "channels-50",
        "null control",
        "governor",
    ):
        assert words in done.stdout
    assert "measure: 6/6 eager: timing batch 8" in done.stderr


def test_measure_prints_json_and_nothing_else_on_stdout(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    args = ["measure", "task.py", "runs/channels-50", "--from", "trained.safetensors", "--runtime", "eager", "--json"]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    sheet = json.loads(done.stdout)
    assert list(sheet["models"]) == ["dense", "channels-50"]
    assert sheet["models"]["channels-50"]["parameters"] < sheet["models"]["dense"]["parameters"]
    assert sheet["measurements"][0]["models"]["dense"]["median"] > 0


def test_measure_fails_where_no_runtime_can_run_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(RUNTIMES, "odd", runtime_that_adds(1.0))
    done = CliRunner().invoke(app, ["measure", "task.py", "--runtime", "odd"])
    assert done.exit_code == 1, done.output
    assert "Not measured with batch 1: dense in odd: It computes something else there" in in_words(done.stdout)
    assert "secateur: No runtime could run the model; the reasons are above." in done.stderr
    assert "Traceback" not in done.stderr


def test_measuring_again_adds_to_what_was_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    shutil.rmtree("again", ignore_errors=True)
    shutil.copytree("runs/channels-50", "again")
    Path("again/report.json").unlink(missing_ok=True)
    for batch in ("1", "4"):
        done = CliRunner().invoke(app, ["measure", "task.py", "again", "--max-seconds", "0", "--batch", batch])
        assert done.exit_code == 0, done.output
    assert [item.batch for item in load_report("again").measurements] == [1, 4]


def test_a_read_only_run_is_measured_and_then_told_to_be_read_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*where: object) -> str:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("secateur.base.scratch.tempfile.mkdtemp", read_only)
    done = CliRunner().invoke(app, "measure task.py runs/zeros-90 runs/channels-50 --max-seconds 0".split())
    assert done.exit_code == 1, done.output
    assert "eager, float32, batch 1, one thread" in done.stdout
    assert "The latencies are in" not in done.stdout
    reason = "(the file system is read-only)"
    assert f"not kept in runs/zeros-90 {reason} and runs/channels-50 {reason}; copy the run to a folder" in done.stderr
    assert "space" not in done.stderr


@pytest.fixture
def mistakes(folder: Path) -> Path:
    (folder / "failing.py").write_text("\n\nraise ValueError('not today')\n")
    (folder / "other.py").write_text(
        TASK.replace("return trained_convnet()", "import torch\n    return torch.nn.Linear(4, 4)")
    )
    (folder / "inputs.py").write_text(
        TASK + "def example_inputs():\n    return next(iter(eval_data()))[0].flatten(1)\n"
    )
    (folder / "shy.py").write_text(TASK.replace("return trained_convnet()", "return Shy()") + SHY)
    (folder / "runs" / "unfinished").mkdir(exist_ok=True)
    (folder / "runs" / "unfinished" / "run.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ("measure taks.py", 2, "There is no task file taks.py; did you mean task.py?"),
        ("measure task.py runs/zeros-9", 2, "There is no run in runs/zeros-9; did you mean runs/zeros-90?"),
        ("measure task.py runs", 2, "There is no run in runs; give a folder"),
        ("measure task.py runs/unfinished", 2, "has not ended yet"),
        ("measure other.py runs/zeros-90", 2, "pruned another architecture"),
        ("measure inputs.py", 2, "dense does not run on one example (RuntimeError: "),
        ("sensitivity shy.py --from trained.safetensors", 1, "shy.py:17 failed (KeyError: 'no more')"),
        ("measure task.py --runtime opnvino", 2, "Did you mean 'openvino'?"),
        ("measure task.py --batch 0", 2, "greater than or equal to 1"),
        ("measure failing.py", 1, "failing.py:3 failed (ValueError: not today)"),
        ("sensitivity failing.py", 1, "failing.py:3 failed (ValueError: not today)"),
        ("sensitivity task.py --from traind.safetensors", 2, "did you mean trained.safetensors?"),
        ("sensitivity task.py --amount lots", 2, "The amount to prune is 'lots'"),
        ("sensitivity task.py --amuont 1%", 2, "--amount"),
    ],
)
def test_mistakes_get_one_sentence(
    args: str, code: int, words: str, mistakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mistakes)
    monkeypatch.setattr(sys, "path", list(sys.path))
    files = set(mistakes.iterdir())
    done = CliRunner().invoke(app, args.split())
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.stderr
    assert words in in_words(done.stderr.replace("│", " "))
    assert not done.stdout
    assert {file for file in mistakes.iterdir() if file.suffix == ".json"} <= files, "nothing is left behind"


def test_debug_shows_the_users_own_traceback(folder: Path) -> None:
    (folder / "failing.py").write_text("raise ValueError('not today')\n")
    done = run("measure", "failing.py", "--debug", cwd=folder)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ValueError: not today" in done.stderr


def test_sensitivity_is_interrupted_goes_on_and_is_saved(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metric waits until the test has seen the first evaluations, so that Ctrl-C comes in the middle."""
    slow = """
def metric(model, loader):
    import pathlib, time
    from secateur.loop import accuracy
    if pathlib.Path("wait").exists():
        time.sleep(0.3)
    with open("evaluations", "a") as log:
        log.write("x")
    return accuracy(model, loader)
"""
    (folder / "slow.py").write_text(TASK + slow)
    (folder / "wait").touch()
    out = tmp_path / "out" / "s.json"
    args = [
        "sensitivity",
        "slow.py",
        "--from",
        "trained.safetensors",
        "-o",
        str(out),
        "--html",
        str(tmp_path / "s.html"),
    ]
    first = Program(COMMAND, *args, folder=folder, environment={"COLUMNS": "80"})
    cache = out.with_suffix(".cache.json")
    while not (cache.exists() and '"0.5"' in cache.read_text()):
        assert first.running, first.wait()
        time.sleep(0.01)
    first.interrupt()
    stopped = first.wait()
    assert stopped.returncode == 130
    assert "continues after the last finished evaluation" in stopped.stderr
    assert "secateur sensitivity slow.py --from trained.safetensors" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert not out.exists()

    (folder / "wait").unlink()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.stderr
    assert (folder / "evaluations").read_text() == "x" * (1 + 2 * 3), "nothing was evaluated twice"
    assert "metric with one group cut" in done.stdout
    assert f"The numbers are in {out}" in done.stdout
    assert "conv" in (tmp_path / "s.html").read_text()

    again = CliRunner().invoke(app, [*args, "--amount", "50%", "--json"])
    assert json.loads(again.stdout) == json.loads(out.read_text())
    assert [len(group["points"]) for group in json.loads(again.stdout)["groups"]] == [1, 1]
    assert "sensitivity:" not in again.stderr, "all of it was known"
