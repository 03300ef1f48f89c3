"""Exports compute in their runtime what the model computes in PyTorch, or leave nothing behind."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

import secateur
from secateur import SecateurError, UsageError
from secateur.examples.encoder import Encoder
from secateur.formats.exported import Exported
from secateur.formats.exporting import export
from secateur.formats.known_formats import FORMATS
from tests.bench.test_runtimes import BatchInTheCode, TwoInputs
from tests.support.cutting import Net, everything, image
from tests.support.forked import Program
from tests.support.models import ConvNet

SUFFIXES = {"onnx": ".onnx", "openvino": ".xml", "torch-export": ".pt2"}


def in_onnxruntime(path: Path, *inputs: Tensor) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path)
    names = [each.name for each in session.get_inputs()]
    return list(session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)}))


def in_openvino(path: Path, *inputs: Tensor) -> list[np.ndarray]:
    model = openvino.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return list(model([x.numpy() for x in inputs]).to_tuple())


def in_torch(path: Path, *inputs: Tensor) -> list[np.ndarray]:
    return [torch.export.load(path).module()(*inputs).detach().numpy()]


RUN = {"onnx": in_onnxruntime, "openvino": in_openvino, "torch-export": in_torch}


@pytest.mark.parametrize("to", SUFFIXES)
def test_a_cut_model_is_the_same_in_every_format_and_batch(cut_net: Net, to: str, tmp_path: Path) -> None:
    path = tmp_path / "out" / f"model{SUFFIXES[to]}"
    cut_net.train()
    before = everything(cut_net)
    exported = export(cut_net, image(2), path, to=to, progress=False)
    assert everything(cut_net) == before

    assert exported.any_batch
    assert exported.batches == (2, 1, 3)
    assert exported.max_error < 1e-5
    assert exported.file_bytes == sum(file.stat().st_size for file in path.parent.iterdir())
    assert exported.file_bytes > 4 * sum(p.numel() for p in cut_net.parameters()), "weights keep their four bytes"
    assert str(exported).splitlines()[0] == str(path)
    assert f"max error  {exported.max_error:.1e}, " in str(exported)
    assert ", batch 1, 2, 3" in str(exported)
    assert json.loads(json.dumps(exported.to_json()))["path"] == str(path)

    images = torch.randn(5, 3, 8, 8)
    expected = cut_net.eval()(images).detach().numpy()
    np.testing.assert_allclose(RUN[to](path, images)[0], expected, rtol=1e-4, atol=1e-5)
    opened: dict[str, Any] = {}
    exec(exported.loading, opened)
    assert len(exported.loading.splitlines()) == 2


def test_zeros_are_written_like_any_number_and_source_lines_not_at_all(tmp_path: Path) -> None:
    model = ConvNet()
    secateur.apply(model, secateur.plan_weights(model, 0.9))
    path = tmp_path / "model.onnx"
    export(model, torch.randn(2, 4, 4, 4), path, progress=False)
    graph = onnx.load(path).graph
    stored = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    assert np.array_equal(stored["hidden.weight"], model.hidden.weight.detach().numpy())
    assert (stored["hidden.weight"] == 0).mean() > 0.8
    assert b"models.py" not in path.read_bytes(), "where its author keeps the model"


def test_an_encoder_without_some_heads(tmp_path: Path) -> None:
    model = Encoder(width=16, heads=4, hidden=32, depth=1)
    tokens = torch.randn(3, 5, 16)
    secateur.apply(model, secateur.plan_channels(model, tokens, 0.5))
    assert model.layers[0].heads < 4
    exported = export(model, tokens, tmp_path / "model.xml", to="openvino", progress=False)
    assert exported.batches == (3, 1, 4)
    more = torch.randn(7, 5, 16)
    expected = model.eval()(more).detach().numpy()
    np.testing.assert_allclose(in_openvino(tmp_path / "model.xml", more)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("to", ["onnx", "torch-export"])
def test_inputs_by_name_and_outputs_in_a_tree(to: str, tmp_path: Path) -> None:
    inputs = {"y": torch.randn(2, 3), "scale": torch.tensor(3.0), "x": torch.randn(2, 3)}
    exported = export(TwoInputs(), inputs, tmp_path / f"model{SUFFIXES[to]}", to=to, progress=False)
    assert exported.any_batch
    assert exported.max_error < 1e-5
    assert exported.inputs == {"x": ["batch", 3], "y": ["batch", 3], "scale": []}
    assert exported.outputs == ("difference", "all.0", "all.1")


def tiny_bert() -> BertForSequenceClassification:
    sizes = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "max_position_embeddings": 8}
    return BertForSequenceClassification(BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2))


def test_a_program_opens_in_a_process_that_knows_nothing_of_the_model(tmp_path: Path) -> None:
    """It returns one of transformers' own classes, which have to be imported first."""
    model, tokens = tiny_bert(), torch.randint(20, (2, 8))
    exported = export(model, {"input_ids": tokens}, tmp_path / "model.pt2", to="torch-export", progress=False)
    call = f"print(model(input_ids=torch.tensor({tokens.tolist()})).logits.tolist())"
    code = f"{exported.loading}\n{call}"
    done = Program(code).wait()
    assert done.returncode == 0, done.stderr
    expected = model.eval()(input_ids=tokens).logits
    torch.testing.assert_close(torch.tensor(json.loads(done.stdout)), expected)


class OtherwiseAlone(nn.Module):
    """Torch's exporter takes it for granted that a batch is never 1, and the graph computes something else there."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.shape[0] == 1 else 2 * self.linear(x)


@pytest.mark.parametrize(
    ("model", "why"),
    [(BatchInTheCode(), "cannot be exported to ONNX"), (OtherwiseAlone(), "output 1 of 1 with batch 1 differs")],
    ids=["code that counts the batch", "code that minds a single example"],
)
def test_a_file_for_one_batch_only_says_why(model: nn.Module, why: str, tmp_path: Path) -> None:
    exported = export(model, torch.randn(2, 3), tmp_path / "model.onnx", progress=False)
    assert not exported.any_batch
    assert exported.batches == (2,)
    assert re.search(f"batch +2 only: .*{why}", str(exported))


class Adds(nn.Module):
    def __init__(self, amount: float) -> None:
        super().__init__()
        self.amount = nn.Parameter(torch.full((3,), amount))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.amount


def tampered(to: str, wrong: nn.Module) -> Any:
    """A writer of another model's weights."""
    write = FORMATS[to].write
    return dataclasses.replace(
        FORMATS[to], write=lambda model, interface, path, free: write(wrong, interface, path, free)
    )


@pytest.mark.parametrize("to", SUFFIXES)
def test_a_file_that_computes_something_else_is_not_kept(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, x = tmp_path / f"model{SUFFIXES[to]}", torch.ones(2, 3)
    path.write_text("an older file")
    monkeypatch.setitem(FORMATS, to, tampered(to, Adds(1.01)))
    with pytest.raises(SecateurError, match=r"something else in .* with batch 2 differs .* by 1\.0e-02.* 5\.0e-03 of"):
        export(Adds(1.0), x, path, to=to, progress=False)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "an older file"


class NoNumber(nn.Module):
    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.fails = fails

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, (x * torch.nan if self.fails else x * torch.inf)


def test_infinities_agree_and_nans_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, x = tmp_path / "model.pt2", torch.ones(2, 3)
    assert export(NoNumber(fails=False), x, path, to="torch-export", progress=False).max_error == 0
    path.unlink()
    monkeypatch.setitem(FORMATS, "torch-export", tampered("torch-export", NoNumber(fails=True)))
    with pytest.raises(
        SecateurError, match="2 of 2 with batch 2, sequence 3 differs from PyTorch's in its shape or NaNs"
    ):
        export(NoNumber(fails=False), x, path, to="torch-export", progress=False)
    assert not list(tmp_path.iterdir())


def test_an_old_graph_never_gets_new_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between its two files, an export to OpenVINO leaves no graph."""
    path = tmp_path / "model.xml"
    path.write_text("an old graph")
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if target.suffix == ".xml":
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        export(Adds(1.0), torch.ones(2, 3), path, to="openvino", progress=False)
    assert [file.name for file in tmp_path.iterdir()] == ["model.bin"]


def test_what_an_export_that_was_killed_left_is_swept_away(tmp_path: Path) -> None:
    left = tmp_path / ".secateur-abcd1234.partial"
    left.mkdir()
    (left / "half").touch()
    export(Adds(1.0), torch.ones(2, 3), tmp_path / "model.pt2", to="torch-export", progress=False)
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt2"]


def sparse() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3))
    model[0].weight = nn.Parameter(torch.eye(3).to_sparse_csr(), requires_grad=False)
    return model


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("no more")


@pytest.mark.parametrize(
    ("model", "name", "options", "words"),
    [
        (Adds, "model.onnx", {"to": "onx"}, "There is no format 'onx'; .* Did you mean 'onnx'?"),
        (Adds, "model.onnx", {"to": "openvino"}, "is no name for OpenVINO; let it end in .xml."),
        (Adds, "folder.onnx", {}, "is a folder; give the file to write."),
        (Adds, "model.onnx", {"int8": True}, "int8 finds its ranges on examples; pass calibration_data"),
        (Adds, "model.onnx", {"int8": True, "calibration_data": [1]}, "has to be measured; pass eval_data."),
        (Adds, "model.onnx", {"int8": [1], "eval_data": [1]}, "int8 is a list; pass int8=True, and the data as cal"),
        (Adds, "model.onnx", {"calibration_data": [1]}, "no effect on a float file; add int8=True, or leave them out."),
        (Adds, "model.onnx", {"eval_data": [1]}, "no effect on a float file; add int8=True"),
        (Adds, "model.onnx", {"metric": len}, "no effect on a float file; add int8=True"),
        (Adds, "model.pt2", {"to": "torch-export", "int8": True}, "no int8 for torch-export; export to onnx or openv"),
        (sparse, "model.onnx", {}, "0.weight is stored as torch.sparse_csr; put tensor.to_dense"),
        (Fails, "model.onnx", {}, "failed on the example inputs .KeyError: 'no more'"),
    ],
)
def test_mistakes_get_one_sentence(
    model: Callable[..., nn.Module], name: str, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    (tmp_path / "folder.onnx").mkdir()
    made = model(1.0) if model is Adds else model()
    with pytest.raises(UsageError, match=words) as raised:
        export(made, torch.ones(2, 3), tmp_path / name, progress=False, **options)
    assert "\n" not in str(raised.value)
    assert [file.name for file in tmp_path.iterdir()] == ["folder.onnx"]


def test_inputs_and_path_in_each_others_place() -> None:
    with pytest.raises(UsageError, match=r"path is a Tensor; call export.model, example_inputs, path."):
        export(Adds(1.0), "model.onnx", torch.ones(2, 3))  # type: ignore[arg-type]


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SecateurError, match="could not be written"):
        export(Adds(1.0), torch.ones(2, 3), tmp_path / "file" / "model.pt2", to="torch-export", progress=False)


@pytest.mark.parametrize(
    ("to", "package", "words"),
    [
        ("onnx", "onnxruntime", r"needs onnxruntime: pip install '\.\[onnxruntime\]'"),
        ("openvino", "openvino", r"needs openvino: pip install '\.\[openvino\]'"),
        ("openvino", "nncf", r"int8 for openvino needs nncf: pip install '\.\[int8\]'"),
    ],
)
def test_what_is_not_installed_is_named(
    to: str, package: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    for module in ("secateur.bench.runtimes", "secateur.formats.known_formats"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(UsageError, match=words):
        export(
            Adds(1.0),
            torch.ones(2, 3),
            tmp_path / f"model{SUFFIXES[to]}",
            to=to,
            int8=True,
            calibration_data=[1],
            eval_data=[1],
        )


def test_measuring_and_exporting_can_be_imported_in_either_order() -> None:
    """Each needs the other; the rest of this file imports them the other way round."""
    code = "import secateur.bench.runtimes; from secateur import export; assert callable(export)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert secateur.Exported is Exported
