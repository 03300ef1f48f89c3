"""`secateur init` and `secateur inspect`, settings from a file, and the task that a run names."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from secateur import UsageError
from secateur.commands.app import app
from secateur.commands.runs import task_and_runs
from secateur.commands.task_file import load_task
from tests.commands.test_task_file import TASK


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def secateur(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(args))
    return result.exit_code, result.stdout, " ".join(result.stderr.replace("│", " ").split())


def test_init_writes_a_task_that_works_as_it_is() -> None:
    code, out, _ = secateur("init", "my_task.py")
    assert code == 0
    assert "secateur inspect my_task.py" in out
    assert "secateur prune my_task.py" in Path("my_task.py").read_text()
    code, out, _ = secateur("inspect", "my_task.py")
    assert code == 0
    assert "6 groups can be cut" in out
    task = load_task("my_task.py")
    batch = next(iter(task.train_data()))
    assert task.loss(task.build_model(), batch).isfinite()
    assert task.build_model()(task.example_inputs()).shape == (1, 10)


def test_what_init_leaves_as_comments_works_once_it_is_code() -> None:
    secateur("init")
    text = Path("task.py").read_text()
    Path("task.py").write_text(re.sub(r"^# (?=import |def |    )", "", text, flags=re.MULTILINE))
    task = load_task("task.py")
    assert task.build_recipe({}).optimizer == "sgd"
    assert next(iter(task.calibration())).shape[1:] == (1, 28, 28)
    assert {task.loss.__name__, task.metric.__name__} == {"loss", "metric"}


def test_init_never_writes_over_a_file() -> None:
    Path("task.py").write_text("mine")
    code, _, errors = secateur("init")
    assert code == 2
    assert "task.py exists already" in errors
    assert Path("task.py").read_text() == "mine"
    code, _, errors = secateur("init", "task")
    assert code == 2
    assert "call it task.py" in errors


def test_an_error_of_secateurs_own_is_not_blamed_on_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("task.py").write_text(TASK)
    monkeypatch.setattr("secateur.channels.anatomy.dissect", int)  # which takes no model
    result = CliRunner().invoke(app, ["inspect", "task.py"])
    assert isinstance(result.exception, TypeError)
    assert "anatomy.py" not in result.stderr


def test_inspect_tells_what_each_group_is_worth() -> None:
    Path("task.py").write_text(TASK)
    code, out, _ = secateur("inspect", "task.py", "--json")
    assert code == 0
    (group,) = [group for group in json.loads(out)["groups"] if group["name"] == "conv"]
    assert group["units"] == 8
    assert group["parameters"] > 0
    assert group["macs"] > 0


def test_settings_are_written_back_and_repeat_the_run() -> None:
    Path("task.py").write_text(TASK.replace("return trained_convnet()", "return ConvNet()"))
    options = (
        "--train",
        "1",
        "--finetune",
        "1",
        "--channels",
        "50%",
        "--keep",
        "output",
        "--seed",
        "3",
        "--no-measure",
    )
    code, first, _ = secateur("prune", "task.py", "-o", "out", *options, "--json")
    assert code == 0
    settings = tomllib.loads(Path("out/settings.toml").read_text())
    expected = {"task": "task.py", "out": "out", "channels": "50%", "keep": ["output"], "seed": 3, "finetune": "1"}
    assert expected.items() <= settings.items()
    assert "json" not in settings
    code, again, _ = secateur("prune", "--settings", "out/settings.toml", "-o", "again", "--json")
    assert code == 0
    without_times = [[{**record, "seconds": 0} for record in json.loads(text)["records"]] for text in (first, again)]
    assert without_times[0] == without_times[1]  # from the same random weights on
    code, other, _ = secateur("prune", "--settings", "out/settings.toml", "-o", "other", "--seed", "4", "--json")
    assert code == 0
    assert json.loads(other)["records"][0]["metric"] != json.loads(first)["records"][0]["metric"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('chanels = "50%"', "did you mean 'channels'?"),
        ("channels = {a = 1}", "channels in mine.toml is a table"),
        ("channels = ", "mine.toml is no TOML that can be read"),
        ('channels = "\\u001b[2J"', "channels holds a control character"),
        ('keep = ["\\u001b[2J"]', "keep holds a control character"),
        ('threads = "many"', "Invalid value for '--threads'"),
        (None, "There are no settings mine.toml"),
    ],
)
def test_wrong_settings_are_answered_in_a_sentence(text: str | None, message: str) -> None:
    Path("task.py").write_text(TASK)
    if text is not None:
        Path("mine.toml").write_text(text)
    code, _, errors = secateur("prune", "task.py", "-o", "out", "--settings", "mine.toml")
    assert code == 2
    assert message in errors
    assert not Path("out").exists()


def test_a_run_names_its_task() -> None:
    Path("jobs").mkdir()
    Path("jobs/task_of_a_run.py").write_text(TASK)
    Path("out").mkdir()
    for named in ("jobs/task_of_a_run.py", "jobs.task_of_a_run"):
        Path("out/settings.toml").write_text(f'task = "{named}"')
        task, runs = task_and_runs(["out", "other"], None)
        assert task.name in ("task_of_a_run.py", "jobs.task_of_a_run")
        assert runs == [Path("out"), Path("other")]
    assert task_and_runs(["jobs/task_of_a_run.py", "out"], None)[1] == [Path("out")]
    with pytest.raises(UsageError, match="not both"):
        task_and_runs(["jobs/task_of_a_run.py", "out"], "other.py")


@pytest.mark.parametrize("place", ["out/task.py", "../task.py", "/task.py"])
def test_a_run_from_elsewhere_runs_no_code(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    (here / "out").mkdir(parents=True)
    monkeypatch.chdir(here)
    where = Path(str(tmp_path) + place) if place.startswith("/") else Path(place)
    where.write_text("open('ran', 'w').close()")
    Path("out/settings.toml").write_text(f"task = {json.dumps(str(where))}")
    with pytest.raises(UsageError, match=r"add --task TASK"):
        task_and_runs(["out"], None)
    assert not Path("ran").exists()


STRANGE_TASKS = {
    "evil/task.py": "beside the run",
    "evil/code/task.py": "in another folder beside the run",
    "second/task.py": "in the second of two runs",
    "finished/task.py": "in another run's folder",
    "finished/deep/task.py": "below another run's folder",
    "finished.deep.task": "likewise, as a module",
    "link/task.py": "in a run's folder, by way of a link",
    "linked.py": "a link to a run's file",
    "finished/own.py": "a link to the user's own file, among a run's modules",
    "shadowed": "a module that a package hides",
    "antigravity": "an installed module",
    "": "no path at all",
    "..": "a folder",
    "round.py": "a link to itself",
    "task\\u0000.py": "a path that cannot be",
    "x" * 5000 + ".py": "a path that is too long",
}


@pytest.mark.parametrize("named", STRANGE_TASKS, ids=lambda named: STRANGE_TASKS[named])
def test_a_task_that_may_have_come_with_a_run_is_not_run(named: str, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("evil/run", "evil/code", "second", "finished/deep", "shadowed"):
        Path(folder).mkdir(parents=True)
        Path(folder, "task.py").write_text("open('ran', 'w').close()")
    Path("finished/run.json").write_text("{}")
    for file in ("evil/task.py", "finished/task.py", "shadowed.py", "shadowed/__init__.py", "mine.py"):
        Path(file).write_text("open('ran', 'w').close()")
    for link, to in {"link": "finished", "linked.py": "link/task.py", "finished/own.py": "../mine.py"}.items():
        Path(link).symlink_to(to)
    Path("round.py").symlink_to("round.py")
    Path("evil/run/settings.toml").write_text(f'task = "{named}"')
    with pytest.raises(UsageError, match=r"add --task TASK|control character"):
        task_and_runs(["evil/run", "second"], None)
    assert not Path("ran").exists()
    assert "Running" not in capsys.readouterr().err


def test_the_task_of_a_run_in_the_current_folder_is_named_by_a_person(tmp_path: Path) -> None:
    for record, task in (("run.json", "task.py"), ("settings.toml", "code/task.py")):
        Path("code").mkdir(exist_ok=True)
        Path(record).touch()
        Path(task).write_text("open('ran', 'w').close()")
        Path("settings.toml").write_text(f'task = "{task}"')
        with pytest.raises(UsageError, match="add --task TASK"):
            task_and_runs(["."], None)
        Path("run.json").unlink(missing_ok=True)
    assert not Path("ran").exists()


def test_settings_say_which_task_is_about_to_run_and_bring_none() -> None:
    Path("evil").mkdir()
    Path("evil/task.py").write_text("open('ran', 'w').close()")
    Path("evil/settings.toml").write_text('task = "evil/task.py"\nsparsity = "50%"')
    code, _, errors = secateur("prune", "--settings", "evil/settings.toml")
    assert code == 2
    assert "name it in front of --settings" in errors
    assert not Path("ran").exists()
    Path("failing.py").write_text("raise ValueError('it ran')")
    Path("evil/settings.toml").write_text('task = "failing.py"\nsparsity = "50%"')
    code, out, errors = secateur("prune", "--settings", "evil/settings.toml")
    assert (code, out) == (1, "")
    assert errors.startswith("Running failing.py, as evil/settings.toml says. secateur: failing.py:1 failed")
    code, _, errors = secateur("prune", "failing.py", "--settings", "evil/settings.toml")
    assert errors.startswith("secateur: failing.py:1 failed"), "who names a task knows what runs"


def test_a_misspelt_run_is_answered_with_what_was_meant() -> None:
    Path("runs/zeros-90").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"There is no folder runs/zero-90; did you mean runs/zeros-90\?"):
        task_and_runs(["runs/zero-90"], None)


def test_a_run_without_settings_asks_for_its_task() -> None:
    Path("out").mkdir()
    with pytest.raises(UsageError, match=r"There is no run in out; give a folder that prune wrote"):
        task_and_runs(["out"], None)
    Path("out/run.json").touch()
    with pytest.raises(UsageError, match=r"out does not say which task it pruned; add --task TASK"):
        task_and_runs(["out"], None)
