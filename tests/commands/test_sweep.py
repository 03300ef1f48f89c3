"""`secateur sweep` as a person meets it."""

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import secateur
from secateur.commands.app import app
from tests.commands.test_task_file import TASK


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.py").write_text(TASK)
    return tmp_path / "task.py"


def sweep(*options: str, measure: str = "--no-measure") -> tuple[int, str, str]:
    quick = ("--finetune", "1", "--repair", "0", "--at-once", "1", measure)
    result = CliRunner().invoke(app, ["sweep", "task.py", *quick, *options])
    return result.exit_code, result.stdout, result.stderr


def test_all_cuts_with_all_seeds_and_a_page(task: Path) -> None:
    asked = ("--sparsity", "80%", "--pattern", "2:4", "--pattern", "2x1", "--channels", "50%", "--target", "macs=60%")
    code, told, errors = sweep(*asked, "--seeds", "2", measure="--measure")
    assert code == 0, errors
    found = secateur.Sweep.load("sweep")
    assert [run.name for run in found.runs][::2] == ["macs-60", "channels-50", "zeros-80", "2-4", "2x1-80"]
    assert "Complete: 10 runs." in told
    assert "sweep/report.html shows them" in told
    assert "macs-60-seed-1: accuracy" in errors
    page = Path("sweep/report.html").read_text()
    assert "macs-60" in page
    assert Path("sweep/2-4-seed-1/report.html").exists()


def test_a_run_of_a_sweep_is_one_that_prune_goes_on_with(task: Path) -> None:
    code, _, errors = sweep("--channels", "50%", "--seeds", "2", "--lr", "0.002")
    assert code == 0, errors
    settings = Path("sweep/channels-50-seed-1/settings.toml")
    stored = tomllib.loads(settings.read_text())
    assert (stored["channels"], stored["seed"], stored["lr"]) == ("50%", 1, 0.002)
    before = secateur.read_checkpoint("sweep/channels-50-seed-1").metrics
    again = CliRunner().invoke(app, ["prune", "task.py", "--settings", str(settings), "--json"])
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["records"] == before["records"], "the stored run, not a new one"


def test_a_dense_model_that_is_trained_first_is_where_the_runs_begin(task: Path) -> None:
    assert sweep("--sparsity", "80%", "--train", "1")[0] == 0
    stored = tomllib.loads(Path("sweep/zeros-80/settings.toml").read_text())
    assert stored["from"] == "sweep/dense/model.safetensors"
    assert "train" not in stored
    again = CliRunner().invoke(app, ["prune", "task.py", "--settings", "sweep/zeros-80/settings.toml", "--json"])
    assert again.exit_code == 0, again.stderr


def test_which_run_to_ship(task: Path) -> None:
    code, told, errors = sweep(
        "--channels", "50%", "--channels", "25%", "--best", "accuracy>=1%", "--best", "size<=90%"
    )
    assert code == 0, errors
    assert "accuracy>=1%: ship sweep/channels-50 (accuracy" in told
    assert "size<=90%: ship sweep/channels-" in told
    assert "`secateur export sweep/channels-50`" in told


def test_what_nothing_meets_is_told_and_the_rest_is_not_lost(task: Path) -> None:
    code, told, errors = sweep("--channels", "50%", "--best", "accuracy>=200%", "--best", "size<=90%")
    assert code == 1
    assert "No version meets accuracy>=200%" in errors
    assert "size<=90%: ship sweep/channels-50" in told
    assert "sweep/report.html shows them" in told


def test_a_missing_run_is_told_with_the_exit_code(task: Path) -> None:
    code, told, errors = sweep("--channels", "50%", "--target", "params=5")
    assert code == 1
    assert "INCOMPLETE: 1 of 2 runs missing (params-5)" in told
    assert "params-5 failed: The target params=5 cannot be reached" in errors
    assert "1 of 2 runs are missing" in errors
    assert 'class="failed"' in Path("sweep/report.html").read_text()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "Say what to try"),
        (("--pattern", "4x1"), "--pattern 4x1 needs --sparsity"),
        (("--channels", "50%", "--best", "acuracy>=0.9"), "did you mean 'accuracy'"),
        (("--channels", "50%", "--include", "bn1"), "include belongs to single weights"),
        (("--channels", "50%", "--channels", "50%"), "Two of the versions are called channels-50"),
        (("--sparsity", "90%", "--from", "taks.py"), "did you mean task.py"),
        (("--sparsity", "90%", "--runtime", "egar"), "Did you mean 'eager'"),
        (("--sparsity", "90%", "--finetune", "long"), "--finetune is 'long'"),
    ],
)
def test_a_call_that_cannot_work_ends_before_anything_is_made(task: Path, options: tuple[str, ...], told: str) -> None:
    code, _, errors = sweep(*options, measure="--measure")
    assert code == 2
    assert told in errors.replace("\n", " ")
    assert not Path("sweep").exists()


def test_settings_from_a_file(task: Path) -> None:
    Path("many.toml").write_text(
        'channels = ["50%", "25%"]\nfinetune = "1"\nrepair = 0\nat-once = 1\nmeasure = false\nout = "many"\n'
    )
    result = CliRunner().invoke(app, ["sweep", "task.py", "--settings", "many.toml"])
    assert result.exit_code == 0, result.stderr
    assert [run.name for run in secateur.Sweep.load("many").runs] == ["channels-50", "channels-25"]
