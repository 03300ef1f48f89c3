"""Task files: what they offer, what they may leave out, and the sentence that answers every mistake in them."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn

from secateur import SecateurError, UsageError
from secateur.commands.task_file import load_task
from secateur.loop.task import accuracy, classification_loss
from tests.support.models import ConvNet

TASK = """
from torch.utils.data import DataLoader
from tests.support.models import ConvNet, blobs, trained_convnet

def model():
    return trained_convnet()

def train_data():
    return DataLoader(blobs(), 32, shuffle=True)

def eval_data():
    return DataLoader(blobs(64, seed=1), 32)
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.setattr(sys, "path", list(sys.path))  # a task file's folder joins it

    def write(text: str, name: str = "task.py") -> Path:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_a_file_offers_its_functions_and_the_defaults_of_classification(write: Write) -> None:
    task = load_task(write(TASK))
    assert isinstance(task.model(), ConvNet)
    assert len(task.train_data()) == 8
    assert len(task.eval_data()) == 2
    assert task.loss is classification_loss
    assert task.metric is accuracy
    model = task.build_model()
    hits = [model(images).argmax(1) == labels for images, labels in task.eval_data()]
    assert task.metric(model, task.eval_data()) == pytest.approx(torch.cat(hits).double().mean().item())


def test_calibration_takes_the_place_of_training_data(write: Write) -> None:
    both = load_task(write(TASK + "def calibration():\n    return [blobs().tensors[0]]\n"))
    assert len(both.calibration()[0]) == 256
    assert len(both.train_data()) == 8
    only = load_task(write(TASK.replace("def train_data", "def calibration"), "only.py"))
    assert only.train_data() is None
    assert len(only.calibration()) == 8
    assert load_task(write(TASK)).calibration() is None


def test_example_inputs_come_from_the_first_evaluation_batch(write: Write) -> None:
    task = load_task(write(TASK))
    (images,) = task.example_inputs()
    assert torch.equal(images, next(iter(task.eval_data()))[0][:1])
    own = load_task(write(TASK + "def example_inputs():\n    return {'x': 7}\n"))
    assert own.example_inputs() == {"x": 7}


def test_loss_and_metric_may_be_the_users_own(write: Write) -> None:
    own = """
def loss(model, batch):
    return model(batch[0]).square().mean()

class Share:
    def __call__(self, model, loader):
        return 0.25
metric = Share()
"""
    task = load_task(write(TASK + own))
    model, batch = task.model(), next(iter(task.eval_data()))
    assert task.loss(model, batch).equal(model(batch[0]).square().mean())
    assert task.metric(task.model(), task.eval_data()) == 0.25
    assert task.metric.__name__ == "Share"


def test_a_task_may_be_a_module_and_import_its_neighbours(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write("", "jobs_of_mine/__init__.py")
    write(TASK, "jobs_of_mine/flowers.py")
    assert isinstance(load_task("jobs_of_mine.flowers").model(), ConvNet)
    write("WIDTH = 3\n", "neighbour_of_mine.py")
    late = TASK + "def example_inputs():\n    import neighbour_of_mine\n    return neighbour_of_mine.WIDTH\n"
    assert load_task(str(write(late, "late.py"))).example_inputs() == 3


def test_a_file_may_be_called_like_a_module_that_is_in_use(write: Write) -> None:
    assert isinstance(load_task(write(TASK, "torch.py")).model(), ConvNet)
    assert torch.nn is nn


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("taks.py", "There is no task file .*taks.py; did you mean .*task.py\\?"),
        ("nothing_like_it.py", "There is no task file .*; check the path."),
        ("nowhere/task.py", "There is no task file .*; check the path."),
        ("folder", "is a folder; give the task file in it"),
        ("notes.txt", "notes.txt is not a Python file"),
    ],
)
def test_a_path_that_leads_nowhere(name: str, sentence: str, write: Write, tmp_path: Path) -> None:
    write(TASK)
    write("hello", "notes.txt")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=sentence):
        load_task(tmp_path / name)


def test_a_module_that_is_not_there(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(TASK)
    with pytest.raises(UsageError, match=r"There is no task taks; did you mean task.py\?"):
        load_task("taks")
    with pytest.raises(UsageError, match="give the path to a Python file, or a module that can be imported"):
        load_task("package_that_is_missing.module")
    with pytest.raises(UsageError, match="There is no task"):
        load_task("a..b")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("def train_data", "def batches", "has no function train_data; add `def train_data.. -> DataLoader`"),
        ("def eval_data", "def evaldata", "has a function evaldata; did you mean eval_data?"),
        ("def model", "def modle", "has a function modle; did you mean model?"),
        ("def model():", "def model(width):", "model in task.py takes other arguments .*write `def model"),
        ("def eval_data():\n    return ", "eval_data = ", "eval_data in task.py is a DataLoader, not a function"),
    ],
)
def test_a_required_function_that_is_missing_or_wrong(old: str, new: str, sentence: str, write: Write) -> None:
    assert old in TASK
    with pytest.raises(UsageError, match=sentence):
        load_task(write(TASK.replace(old, new)))


@pytest.mark.parametrize("name", ["exampl_inputs", "example_input", "metrics", "loss_fn"])
def test_a_misspelt_function_is_not_ignored(name: str, write: Write) -> None:
    with pytest.raises(UsageError, match=f"has a function {name}; did you mean .*If not, call it _{name}"):
        load_task(write(TASK + f"def {name}(*args):\n    return 1\n"))
    load_task(write(TASK + f"def _{name}(*args):\n    return 1\n"))
    load_task(write(TASK + f"from math import sqrt as {name}\n"))


def test_what_the_users_code_raises_is_one_sentence_with_the_line(write: Write) -> None:
    with pytest.raises(SecateurError, match=r"task\.py:1 failed \(ZeroDivisionError: division by zero\)") as raised:
        load_task(write("1 / 0\n" + TASK))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    task = load_task(
        write(TASK.replace("return trained_convnet()", "import torch\n    return torch.zeros(2) @ torch.ones(3)"))
    )
    with pytest.raises(SecateurError, match=r"task\.py:7 failed \(RuntimeError"):
        task.build_model()
    with pytest.raises(SecateurError, match=r"task\.py:2 failed \(SyntaxError"):
        load_task(write("x = 1\ndef model(:\n"))
    with pytest.raises(SecateurError, match=r"task\.py:2 failed \(SystemExit: 3\)"):
        load_task(write("import sys\nsys.exit(3)\n"))
    with pytest.raises(SecateurError, match=r"task\.py:1 failed \(ModuleNotFoundError: No module named 'not_here'\)"):
        load_task(write("import not_here\n" + TASK))
    loss = load_task(write(TASK + "def loss(model, batch):\n    return batch['pixels']\n")).loss
    with pytest.raises(SecateurError, match=r"task\.py:14 failed \(TypeError"):
        loss(ConvNet(), [1, 2])


def test_a_module_that_raises_names_its_line(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("import torch\ntorch.zeros(2) @ torch.ones(3)\n", "failing_task_module.py")
    with pytest.raises(SecateurError, match=r"failing_task_module\.py:2 failed \(RuntimeError"):
        load_task("failing_task_module")


def test_a_broken_file_leaves_no_module_behind(write: Write) -> None:
    with pytest.raises(SecateurError, match="ZeroDivisionError"):
        load_task(write("1 / 0\n", "broken_task_file.py"))
    assert isinstance(load_task(write(TASK, "broken_task_file.py")).model(), ConvNet)


def test_example_inputs_that_cannot_be_found(write: Write) -> None:
    none = load_task(write(TASK + "def loss(model, batch):\n    return batch[0].sum()\n"))
    with pytest.raises(UsageError, match=r"does not call the model it is given.*add `def example_inputs"):
        none.example_inputs()
    empty = load_task(write(TASK.replace("DataLoader(blobs(64, seed=1), 32)", "[]")))
    with pytest.raises(UsageError, match=r"eval_data in task\.py yields no batch"):
        empty.example_inputs()


def test_model_has_to_return_a_module(write: Write) -> None:
    with pytest.raises(UsageError, match=r"model\(\) in task.py returns a type; return the nn.Module"):
        load_task(write(TASK.replace("return trained_convnet()", "return ConvNet"))).build_model()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


@pytest.mark.parametrize("model", [ConvNet, Tied])
@pytest.mark.parametrize("file", ["model.safetensors", "model.pt"])
def test_weights_are_loaded_from_both_kinds_of_file(
    model: type[nn.Module], file: str, write: Write, tmp_path: Path
) -> None:
    trained = model()
    if file.endswith(".pt"):
        torch.save(trained.state_dict(), tmp_path / file)
    else:
        save_model(trained, str(tmp_path / file))
    imports = TASK.replace(
        "from tests.support.models", "from tests.commands.test_task_file import Tied\nfrom tests.support.models"
    )
    task = load_task(write(imports.replace("return trained_convnet()", f"return {model.__name__}()")))
    made = task.build_model(tmp_path / file)
    for name, tensor in trained.state_dict().items():
        assert torch.equal(made.state_dict()[name], tensor), name


def test_weights_that_do_not_fit_are_named(write: Write, tmp_path: Path) -> None:
    task = load_task(write(TASK))
    state = {name: tensor.clone() for name, tensor in ConvNet().state_dict().items()}
    state["module.conv.weight"], state["extra"] = state.pop("conv.weight"), torch.zeros(1)
    state["output.bias"] = torch.zeros(7)
    save_file(state, tmp_path / "other.safetensors")
    with pytest.raises(UsageError) as raised:
        task.build_model(tmp_path / "other.safetensors")
    sentence = str(raised.value)
    assert "missing: conv.weight" in sentence
    assert "unknown to the model: " in sentence
    assert "output.bias is 7, not 4" in sentence


def test_files_that_hold_no_weights(write: Write, tmp_path: Path) -> None:
    build = load_task(write(TASK)).build_model
    torch.save({"epoch": 3}, tmp_path / "whole.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    write("hello", "text.pt")
    write("hello", "text.safetensors")
    write("", "empty.pt")
    torch.save(ConvNet().state_dict(), tmp_path / "short.pt")
    with (tmp_path / "short.pt").open("r+b") as file:
        file.truncate(1000)
    for name, words in {
        "whole.pt": r"There are no weights in .*whole\.pt \(epoch\); write torch\.save",
        "list.pt": "There are no weights in",
        "text.pt": r"holds no weights that can be read \(it is damaged, or something else\)",
        "empty.pt": r"\(it is empty\)",
        "short.pt": r"\(it is cut short; copy it again\)",
        "text.safetensors": "holds no weights that can be read",
        "whloe.pt": r"There is no file .*; did you mean .*whole.pt\?",
        "": "is a folder; give a file of weights",
    }.items():
        with pytest.raises(UsageError, match=words):
            build(tmp_path / name)
