"""`secateur prune` as a person meets it."""

import json
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader
from typer.testing import CliRunner

import secateur
from secateur.base.text import byte_text
from secateur.channels.sensitivity_curves import GroupCurve, Sensitivity
from secateur.channels.target import meet
from secateur.checkpoint.reading import read_checkpoint
from secateur.commands.app import app
from secateur.loop.run_folder import load_run
from secateur.pages.run_report import load_report
from tests.commands.test_task_file import TASK
from tests.support.models import ConvNet, blobs


@pytest.fixture
def task(tmp_path: Path) -> Path:
    file = tmp_path / "task.py"
    file.write_text(TASK)
    return file


def prune(task: Path, *options: str, measure: str = "--no-measure") -> tuple[int, str, str]:
    plain = () if "--repair" in options else ("--repair", "0")
    result = CliRunner().invoke(app, ["prune", str(task), "-o", str(task.parent / "out"), measure, *plain, *options])
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


def test_a_layer_that_the_pattern_does_not_fit_is_named_and_counted(task: Path) -> None:
    code, out, errors = prune(task, "--train", "1", "--finetune", "0", "--pattern", "4:8")
    assert code == 0, errors
    assert "left alone: conv.weight: 4:8 needs a multiple of 8 inputs, and it has 4" in out
    share = (128 * 32 + 32 * 4) / 2 / (8 * 4 * 9 + 128 * 32 + 32 * 4)
    assert f"{share:.1%}" in out
    assert "4:8 needs a multiple of 8 inputs" in (task.parent / "out" / "report.html").read_text(encoding="utf-8")


WITH_FEATURES = """
class WithFeatures(ConvNet):
    def forward(self, x):
        features = self.hidden(self.norm(self.conv(x)).relu().flatten(1)).relu()
        return {"logits": self.output(features), "features": features}
"""


def test_outputs_that_are_not_named_may_shrink(task: Path) -> None:
    task.write_text(TASK.replace("return trained_convnet()", "return WithFeatures()") + WITH_FEATURES)
    cuts = ("--schedule", "iterative", "--cuts", "2")
    code, _, errors = prune(task, "--train", "1", "--finetune", "1", "--channels", "50%", "--outputs", "logits", *cuts)
    assert code == 0, errors
    plan = read_checkpoint(task.parent / "out").plan
    assert plan is not None
    assert plan.free_outputs == ("features",)
    assert {group.name: group.after for group in plan.groups} == {"conv": 4, "hidden": 16}
    misspelt = ("--train", "1", "--channels", "50%", "--outputs", "logit", "-o", str(task.parent / "other"))
    code, _, errors = prune(task, *misspelt)
    assert (code, "did you mean 'logits'?" in errors) == (2, True)


def test_the_run_is_measured_and_reported_and_measured_again(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(task.parent)
    command = [Path(task.name), "--train", "1", "--finetune", "1", "--channels", "0.5", "--json"]
    code, out, _ = prune(*command, measure="--measure")
    assert code == 0
    (measured,) = json.loads(out)["measurements"]["measurements"]
    assert set(measured["models"]) == {"dense", "out"}
    (latency,) = load_report("out").measurements
    assert latency.comparison["out"].ratio == measured["models"]["out"]["ratio"]
    assert sum(load_report("out").histogram.removed) > 0
    again = CliRunner().invoke(app, ["measure", "out", "--batch", "2", "--batch", "3"])
    assert again.exit_code == 0, again.stderr
    assert "out/report.html" in again.stdout
    assert [latency.batch for latency in load_report("out").measurements] == [1, 2, 3]


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
        (
            ("--channels", "50%", "--finetune", "15%"),
            "--finetune 15% is a share of the original epochs, which are unknown; give --original-epochs",
        ),
        ((), "Say how much to remove"),
        (("--channels", "50%", "--target", "macs=50%"), "either channels or a target"),
        (("--channels", "50%", "--sparsity", "90%"), "either an amount of weights or channels"),
        (("--channels", "50%", "--pattern", "2:4"), "pattern belongs to single weights"),
        (("--channels", "50%", "--sensitivity", "s.json"), "sensitivity belongs to targets"),
        (
            ("--target", "macs=50%", "--sensitivity", "/nowhere/s.json"),
            "no sensitivity file /nowhere/s.json; check the path",
        ),
        (("--channels", "50%", "--floor", "0.2"), "--floor belongs to --scope global"),
        (("--channels", "50%", "--per-layer", "hidden"), "write a layer and its amount, such as conv1=25%"),
        (("--channels", "50%", "--per-layer", "hiden=25%"), "did you mean 'hidden'"),
        (("--channels", "50%", "--optimizer", "adma"), "no optimizer 'adma'; choose one of adamw, sgd"),
        (("--channels", "50%", "--lr", "0"), "--lr is 0.0"),
        (("--channels", "50%", "--cuts", "3"), "--cuts belongs to --schedule iterative"),
        (("--channels", "50%", "--threads", "2"), "belong to measuring"),
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


def test_without_further_options_it_finds_a_folder_and_goes_on_there(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(task.parent)

    def run(*options: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["prune", "task.py", "--no-measure", *options])
        return result.exit_code, result.stdout, result.stderr

    with monkeypatch.context() as patch:
        patch.setattr("secateur.loop.tuner.Tuner.enforce", interrupted)
        code, _, errors = run("--train", "1", "--sparsity", "90%")
    assert code == 130
    assert "goes on from the last finished epoch" in errors
    assert [state.name for state in Path("task-zeros-90").glob("stop-*")] == ["stop-0001"]
    code, out, errors = run("--train", "1", "--sparsity", "90%")
    assert code == 0, errors
    assert "going on after 8 of 16 training batches" in errors
    assert "train epoch" not in errors
    assert "Fine-tuned for 1 epoch by default" in out
    assert "The pruned model is in task-zeros-90" in out


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("options", "folder"),
    [
        (("--channels", "0.25"), "task-channels-25"),
        (("--target", "macs=60%"), "task-macs-60"),
        (("--target", "params=0.6"), "task-params-0.6"),
        (("--pattern", "2:4"), "task-2-4"),
        (("--pattern", "4x1", "--sparsity", "62.5%"), "task-4x1-62.5"),
    ],
)
def test_the_folder_is_named_after_the_task_and_the_cut(
    task: Path, options: tuple[str, ...], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(task.parent)
    done = CliRunner().invoke(app, ["prune", "task.py", "--finetune", "0", "--no-measure", *options])
    assert done.exit_code == 0, done.stderr
    assert read_checkpoint(folder)


def test_everything_that_python_can_say(task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    curves = Sensitivity("accuracy", 0.9, tuple(curve(name) for name in ("conv", "hidden")))
    curves.save(tmp_path / "s.json")
    options = {
        "--target": "macs=60%",
        "--sensitivity": str(tmp_path / "s.json"),
        "--score": "l2",
        "--multiple-of": "2",
        "--floor": "0.3",
        "--per-layer": "conv=25%",
        "--schedule": "iterative",
        "--cuts": "2",
        "--optimizer": "sgd",
        "--lr": "0.05",
        "--weight-decay": "0.001",
        "--distill": "0.5",
        "--tolerance": "0.5",
        "--repair": "64",
        "--finetune": "1",
    }
    code, out, errors = prune(task, *(part for option in options.items() for part in option), "--json")
    assert code == 0, errors
    assert json.loads(out)["tolerance"] == 0.5
    told = read_checkpoint(task.parent / "out").settings
    recipe = secateur.Recipe(optimizer="sgd", lr=0.05, weight_decay=0.001, distill=0.5)
    torch.manual_seed(0)
    same = secateur.prune(
        ConvNet(),
        secateur.Target("macs=60%", sensitivity=curves, score="l2", multiple_of=2, floor=0.3, per_layer={"conv": 0.25}),
        example_inputs=(torch.zeros(1, 4, 4, 4),),
        train_data=DataLoader(blobs(), 32, shuffle=True),
        eval_data=DataLoader(blobs(64, seed=1), 32),
        schedule="iterative",
        cuts=2,
        repair=64,
        finetune=1,
        recipe=recipe,
        progress=False,
        run_dir=tmp_path / "same",
    )
    in_python = read_checkpoint(tmp_path / "same").settings
    assert {**told, "weights": None} == {**in_python, "weights": None}
    stored = tomllib.loads((task.parent / "out" / "settings.toml").read_text())
    assert stored["per-layer"] == ["conv=25%"]
    assert (stored["lr"], stored["multiple-of"], stored["sensitivity"]) == (0.05, 2, str(tmp_path / "s.json"))
    settings = str(task.parent / "out" / "settings.toml")
    monkeypatch.chdir(tmp_path)
    again = CliRunner().invoke(app, ["prune", "--settings", settings, "-o", str(tmp_path / "again")])
    assert again.exit_code == 0, again.stderr
    assert read_checkpoint(tmp_path / "again").settings == told
    assert [record["stop"] for record in json.loads(out)["records"]] == [record.stop for record in same.records]
    assert same.records[2].stop == "repaired 1/2"


def test_a_model_is_repaired_without_training(task: Path) -> None:
    code, out, errors = prune(task, "--train", "1", "--channels", "50%", "--repair", "512", "--finetune", "0")
    assert code == 0, errors
    assert "\nrepaired " in out
    page = (task.parent / "out" / "report.html").read_text(encoding="utf-8")
    assert "repaired, before any fine-tuning: " in page
    assert '"name":"repaired"' in page
    assert tomllib.loads((task.parent / "out" / "settings.toml").read_text())["repair"] == 512


NO_LABELS = TASK.replace("DataLoader(blobs(), 32, shuffle=True)", "DataLoader(blobs().tensors[0], 32, shuffle=True)")
CALIBRATION = TASK.replace(
    "def train_data():\n    return DataLoader(blobs(), 32, shuffle=True)",
    """
def calibration():
    return [blobs().tensors[0]]""",
)


def test_a_task_without_labels_learns_from_the_dense_model(task: Path) -> None:
    task.write_text(NO_LABELS)
    code, _, errors = prune(task, "--sparsity", "90%", "--repair", "128", "--finetune", "1")
    assert code == 0, errors
    assert [record.phase for record in load_run(task.parent / "out", ConvNet()).records[1:]] == [
        "cut",
        "repair",
        "fine-tune",
    ]
    code, _, errors = prune(task, "--sparsity", "80%", "--train", "1", "-o", str(task.parent / "trained"))
    assert code == 2
    assert "A training batch holds no labels" in errors


def test_a_task_may_have_inputs_for_calibration_alone(task: Path) -> None:
    task.write_text(CALIBRATION)
    assert "train_data" not in CALIBRATION
    code, _, errors = prune(task, "--channels", "50%", "--repair", "128")
    assert code == 0, errors
    result = load_run(task.parent / "out", ConvNet())
    assert [record.phase for record in result.records] == ["before", "cut", "repair"]
    code, _, errors = prune(
        task, "--channels", "50%", "--repair", "128", "--finetune", "1", "-o", str(task.parent / "b")
    )
    assert code == 2
    assert "There is no train_data, and --finetune needs some; give it, or use --finetune 0." in errors


def curve(name: str) -> GroupCurve:
    return GroupCurve(name, name, (name,), (name,), 8, ((0.5, 0.8),))


def test_a_task_may_bring_its_recipe(task: Path) -> None:
    task.write_text(TASK + "import secateur\ndef recipe():\n    return secateur.Recipe(lr=0.02, distill=0.5)\n")
    assert prune(task, "--sparsity", "50%", "--distill", "0.25")[0] == 0
    recipe = read_checkpoint(task.parent / "out").settings["recipe"]
    assert "lr=0.02" in recipe
    assert "distill=0.25" in recipe
    task.write_text(TASK + "def recipe():\n    return 0.02\n")
    code, _, errors = prune(task, "--sparsity", "50%")
    assert code == 2
    assert "recipe() in task.py returns a float; return a secateur.Recipe" in errors


@pytest.mark.filterwarnings("ignore::secateur.SecateurWarning")  # of a target that noise kept it from meeting
@pytest.mark.parametrize("batch", [1, 3])
def test_a_latency_is_met_and_measured_with_one_batch(task: Path, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    """That of the user's example inputs; without any, one example."""
    monkeypatch.setattr(meet, "_MOST_AIMS", 1)
    monkeypatch.setattr(meet, "_MOST_STEPS_DOWN", 0)
    task.write_text(RESIDUAL + (EXAMPLES if batch == 3 else ""))
    options = ("--target", "latency=0.85", "--train", "0.1", "--finetune", "0", "--json")
    code, out, errors = prune(task, *options, measure="--measure")
    assert code == 0, errors
    told = json.loads(out)
    assert told["outcome"]["measured_in"].endswith(f"batch {batch}")
    assert [each["batch"] for each in told["measurements"]["measurements"]] == [batch]
    assert "timing candidate" in errors
    assert "confirming candidate" in errors


RESIDUAL = """
import torch
from secateur.examples import SmallResNet
from tests.support.report_runs import loaders

def model():
    return SmallResNet((32,), classes=4)

def train_data():
    return loaders()["train_data"]

def eval_data():
    return loaders()["eval_data"]
"""
EXAMPLES = """
def example_inputs():
    return torch.zeros(3, 1, 28, 28)
"""


RANDOM = TASK.replace("return trained_convnet()", "return ConvNet()")
NEW_HEAD = TASK.replace(
    "return trained_convnet()", "net = trained_convnet()\n    net.output = type(net.output)(32, 4)\n    return net"
)


@pytest.mark.parametrize(("text", "which"), [(RANDOM, "The weights"), (NEW_HEAD, "The weights output.weight")])
def test_random_weights_are_refused(task: Path, text: str, which: str) -> None:
    task.write_text(text)
    code, out, errors = prune(task, "--channels", "50%", "--finetune", "1")
    assert code == 2
    assert errors == (
        f"secateur: {which} of the model are random: model() in task.py returns others every time. Give trained ones "
        "with --from, load them in model(), or train first with --train.\n"
    )
    assert out == ""
    assert not (task.parent / "out").exists()
    assert prune(task, "--channels", "50%", "--finetune", "0", "--train", "0.1")[0] == 0


@pytest.mark.filterwarnings("always:The model looks untrained")
def test_random_weights_of_a_fixed_seed_are_never_called_recovered(task: Path) -> None:
    task.write_text(RANDOM.replace("return ConvNet()", "import torch\n    torch.manual_seed(0)\n    return ConvNet()"))
    code, out, errors = prune(task, "--channels", "50%", "--finetune", "1", "--tolerance", "1")
    assert code == 0
    assert "secateur: warning: The model looks untrained" in errors
    assert "Recovered" not in out
    assert "NOT TRAINED: the weights were random before the cut" in out
    assert "or train it with --train." in out
    assert "NOT TRAINED" in (task.parent / "out" / "report.html").read_text(encoding="utf-8")
    assert load_report(task.parent / "out").untrained


@pytest.mark.parametrize(
    ("metric", "sentence"),
    [
        ('{"acc": 0.5, "f1": 0.3}', "The metric returns a dict of 'acc', 'f1'; let it return one of these numbers"),
        ('float("nan")', "The metric returns nan, by which no models compare; let it return a finite number"),
    ],
)
def test_a_metric_that_is_no_number_ends_the_run(task: Path, metric: str, sentence: str) -> None:
    task.write_text(f"{TASK}\ndef metric(model, loader):\n    return {metric}\n")
    code, out, errors = prune(task, "--channels", "50%", "--finetune", "1")
    assert code == 2
    assert sentence in errors
    assert "Traceback" not in errors
    assert "ecovered" not in out


def test_what_did_not_recover_is_told_how_on_the_command_line(task: Path) -> None:
    code, out, _ = prune(task, "--channels", "75%", "--finetune", "0", "--tolerance", "0")
    assert code == 0
    assert "DID NOT RECOVER" in out
    assert "or cut in smaller steps with --schedule iterative." in out


def test_suggested_commands_can_be_pasted(task: Path) -> None:
    folder = task.parent / "a b"
    done = CliRunner().invoke(
        app, ["prune", str(task), "-o", str(folder), "--no-measure", "--finetune", "0", "--channels", "50%"]
    )
    assert done.exit_code == 0, done.stderr
    assert f"`secateur measure '{folder}' --runtime all`, `secateur export '{folder}'`" in done.stdout
    assert f"prune --settings '{folder}/settings.toml'`" in (folder / "settings.toml").read_text()


def test_the_first_screen_of_the_help_holds_what_most_people_need() -> None:
    text = CliRunner().invoke(app, ["prune", "--help"], env={"COLUMNS": "100"}).stdout
    first, _, rest = text.partition("Ranking and rounding")
    for option in ("--channels", "--target", "--sparsity", "--from", "--finetune", "--runtime", "--out"):
        assert option in first
    for option in ("--lr", "--distill", "--floor", "--threads", "--per-layer", "--settings"):
        assert option not in first
        assert option in rest
