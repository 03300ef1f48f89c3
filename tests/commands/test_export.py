"""`secateur export` as a person meets it: files, sentences, JSON and mistakes."""

from __future__ import annotations

import json
import sys
from inspect import signature
from pathlib import Path

import onnxruntime
import pytest
import torch
from torch.utils.data import DataLoader
from typer import Typer
from typer.testing import CliRunner

import secateur
from secateur.commands.export import export
from secateur.commands.task_file import load_task
from secateur.formats import quantising
from tests.commands.test_task_file import TASK
from tests.formats.test_exporting import tiny_bert
from tests.support.models import ConvNet, blobs

app = Typer(pretty_exceptions_enable=False)
app.command()(export)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task file and a finished run."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("job")
    (folder / "task.py").write_text(TASK)
    data = {"train_data": DataLoader(blobs(), 32, shuffle=True), "eval_data": DataLoader(blobs(64, seed=1), 32)}
    secateur.prune(
        ConvNet(), channels=0.5, train=2, repair=0, finetune=1, progress=False, run_dir=folder / "run", **data
    )
    return folder


@pytest.fixture(autouse=True)
def _in_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(quantising, "TIMING_SECONDS", 0)


def test_a_run_becomes_a_file_with_its_error_and_two_lines_that_open_it(folder: Path) -> None:
    done = CliRunner().invoke(app, ["run", "--to", "torch-export", "--task", "task.py"])
    assert done.exit_code == 0, done.output
    said, loading = done.stdout.split("\n\n")
    assert said.startswith("run/model.pt2\nformat     torch.export, float32\ninputs     x [batch, 4, 4, 4]\n")
    assert "\noutputs    output\nbatch      any\nsize " in said
    assert "\nmax error  0.0e+00" in said
    assert max(map(len, said.splitlines())) <= 80
    assert "export: 1/1 writing torch.export, and comparing it with PyTorch" in done.stderr
    opened: dict[str, torch.nn.Module] = {}
    exec(loading, opened)
    assert opened["model"](torch.randn(3, 4, 4, 4)).shape == (3, 4)


def test_int8_as_json_where_it_is_asked_for(folder: Path, tmp_path: Path) -> None:
    options = ["--to", "onnx", "--int8", "--json", "--task", "task.py"]
    done = CliRunner().invoke(app, ["run", *options])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["path"] == "run/model.int8.onnx"
    assert told["any_batch"]
    assert told["int8"]["metric_before"] > 0.5
    assert told["int8"]["too_costly"] == (told["int8"]["lost"] > 0.02)
    assert onnxruntime.InferenceSession(folder / "run" / "model.int8.onnx").get_inputs()[0].shape[1:] == [4, 4, 4]


def test_the_command_and_the_function_have_the_same_defaults() -> None:
    on_the_command_line, in_python = (signature(each).parameters for each in (export, secateur.export))
    for option in ("to", "int8"):
        assert on_the_command_line[option].default == in_python[option].default
    assert tuple(on_the_command_line["dynamic"].default) == in_python["dynamic"].default


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("run --to onx --task task.py", "There is no format 'onx'; choose one of onnx, openvino, torch-export."),
        ("run --to torch-export --int8 --task task.py", "There is no int8 for torch-export"),
        ("run --to openvino --task task.py -o model.onnx", "model.onnx is no name for OpenVINO; let it end in .xml."),
        ("run --dynamic bach --task task.py", "There is no kind of axis 'bach'; choose one of batch, sequence, image."),
        ("rum --task task.py", "There is no run in rum; did you mean run?"),
        ("rum", "There is no run in rum; did you mean run?"),
        (".", "There is no run in .; give a folder that prune wrote: --out, or run_dir in Python."),
        ("run", "run does not say which task it pruned; add --task TASK."),
        ("run --task taks.py", "There is no task file taks.py; did you mean task.py?"),
    ],
)
def test_mistakes_get_one_sentence(args: str, words: str, folder: Path) -> None:
    files = set(folder.rglob("*"))
    done = CliRunner().invoke(app, args.split())
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
    assert {file for file in folder.rglob("*") if file.suffix != ".pyc" and "__pycache__" not in file.name} <= files


def test_int8_of_a_task_without_training_data(tmp_path: Path) -> None:
    inputs = TASK.replace("def train_data", "def calibration")
    (tmp_path / "inputs.py").write_text(inputs)
    done = CliRunner().invoke(app, ["run", "--int8", "--task", str(tmp_path / "inputs.py")])
    assert done.exit_code == 2, done.output
    assert "inputs.py has no train_data, which --int8 finds its ranges on; add it." in done.stderr


BERT_TASK = """
import torch
from tests.formats.test_exporting import tiny_bert as model


def eval_data():
    ids = torch.arange(48).reshape(6, 8) % 20
    return [{"labels": torch.arange(6) % 2, "input_ids": ids, "attention_mask": torch.ones_like(ids)}]


train_data = eval_data
"""


def test_batches_by_name_without_example_inputs_give_a_file_without_labels(tmp_path: Path) -> None:
    (tmp_path / "named.py").write_text(BERT_TASK)
    data = load_task(tmp_path / "named.py").eval_data()
    secateur.prune(
        tiny_bert(),
        0.5,
        repair=0,
        finetune=1,
        progress=False,
        run_dir=tmp_path / "run",
        train_data=data,
        eval_data=data,
    )
    path = tmp_path / "model.onnx"
    done = CliRunner().invoke(app, [str(tmp_path / "run"), "--task", str(tmp_path / "named.py"), "-o", str(path)])
    assert done.exit_code == 0, done.output
    session = onnxruntime.InferenceSession(path)
    found = {each.name: each.shape for each in (*session.get_inputs(), *session.get_outputs())}
    names = ("input_ids", "attention_mask")
    assert found == {**{name: ["batch", "sequence"] for name in names}, "logits": ["batch", 2]}
    assert ", sequence 7, 8\n" in done.stdout
    model = secateur.load(tmp_path / "run", tiny_bert).eval()
    inputs = {name: torch.ones(5, 3, dtype=torch.long) for name in names}
    (logits,) = session.run(None, {name: x.numpy() for name, x in inputs.items()})
    torch.testing.assert_close(torch.from_numpy(logits), model(**inputs).logits.detach(), rtol=1e-4, atol=1e-5)


def test_axes_that_may_change_are_named_on_the_command_line(folder: Path) -> None:
    options = ["--to", "torch-export", "--json", "--task", "task.py"]
    done = CliRunner().invoke(app, ["run", "--dynamic", "none", *options])
    assert json.loads(done.stdout)["inputs"] == {"x": [1, 4, 4, 4]}
    done = CliRunner().invoke(app, ["run", "--dynamic", "image", "--dynamic", "batch", *options])
    told = json.loads(done.stdout)
    assert told["inputs"] == {"x": ["batch", 4, 4, 4]}
    assert list(told["fixed_because"]) == ["height", "width"], "its linear layer counts them"
