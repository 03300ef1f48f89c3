"""What goes in and out of an exported file: no labels, the names of Python, and sizes that may change."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import openvino
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur import UsageError
from secateur.formats.exporting import export


class Tagger(nn.Module):
    """Attention over tokens with a mask, and a loss where it gets labels."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(20, 8), nn.Embedding(16, 8)
        self.logits = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x = self.embedding(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        scores = (x @ x.transpose(1, 2)).masked_fill(attention_mask[:, None] == 0, -9.0)
        logits = self.logits(scores.softmax(-1) @ x)
        loss = {} if labels is None else {"loss": F.cross_entropy(logits[:, 0], labels)}
        return {**loss, "logits": logits}


def tokens(batch: int, length: int) -> dict[str, Tensor]:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, -2:] = 0
    return {"attention_mask": mask, "input_ids": torch.randint(20, (batch, length))}


def in_onnxruntime(path: Path, inputs: dict[str, Tensor]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(path)
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, {name: x.numpy() for name, x in inputs.items()}), strict=True))


def in_openvino(path: Path, inputs: dict[str, Tensor]) -> dict[str, np.ndarray]:
    found = openvino.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(
        {name: x.numpy() for name, x in inputs.items()}
    )
    return {each.get_any_name(): found[each] for each in found}


def in_torch(path: Path, inputs: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: x.numpy() for name, x in torch.export.load(path).module()(**inputs).items()}


RUN: dict[str, tuple[str, Callable[[Path, dict[str, Tensor]], dict[str, np.ndarray]]]] = {
    "onnx": ("model.onnx", in_onnxruntime),
    "openvino": ("model.xml", in_openvino),
    "torch-export": ("model.pt2", in_torch),
}


@pytest.mark.parametrize("to", RUN)
@torch.no_grad()
def test_tokens_of_any_number_and_length_go_in_and_labels_do_not(to: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, (name, run) = Tagger().eval(), RUN[to]
    batch = {**tokens(2, 6), "labels": torch.tensor([0, 2])}
    exported = export(model, batch, tmp_path / name, to=to, progress=False)
    assert exported.inputs == {"input_ids": ["batch", "sequence"], "attention_mask": ["batch", "sequence"]}
    assert exported.outputs == ("logits",)
    assert exported.left_out == ("labels",)
    assert exported.fixed_because == {}
    sizes = [(each["batch"], each["sequence"]) for each in exported.compared]
    assert sizes == [(2, 6), (1, 6), (3, 5)]
    assert "\nleft out   labels: only the loss needs it\nbatch      any\nsequence   any\n" in str(exported)
    assert str(exported).endswith(", batch 1, 2, 3, sequence 5, 6")
    for batch_size, length in ((5, 11), (1, 16)):
        more = tokens(batch_size, length)
        found = run(tmp_path / name, more)
        assert list(found) == ["logits"]
        np.testing.assert_allclose(found["logits"], model(**more)["logits"].numpy(), rtol=1e-4, atol=1e-5)


class UNet(nn.Module):
    """Returns a mask, and what deep supervision wants in a list; some of its names are also those of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.bottom = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1, stride=2)
        self.up, self.relu = nn.ConvTranspose2d(2, 2, 2, 2), nn.Conv2d(4, 1, 1)

    def forward(self, image: Tensor) -> Any:
        down = F.relu(self.down(image))
        bottom = F.relu(self.bottom(down))
        mask = self.relu(torch.cat([down, self.up(bottom)], 1))
        return {"relu": mask, "features": [bottom, down], "image": image + 1}


def test_outputs_are_called_by_their_keys_and_places(tmp_path: Path) -> None:
    images = torch.randn(2, 1, 6, 8)
    exported = export(UNet(), images, tmp_path / "model.onnx", progress=False)
    assert exported.inputs == {"image": ["batch", 1, 6, 8]}
    assert exported.outputs == ("relu", "features.0", "features.1", "output.image")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [each.name for each in session.get_inputs()] == ["image"]
    assert [each.name for each in session.get_outputs()] == list(exported.outputs)
    assert session.get_outputs()[0].shape == ["batch", 1, 6, 8]


@torch.no_grad()
def test_images_of_any_size_where_that_is_asked_for(tmp_path: Path) -> None:
    """Odd sizes do not fit together again in this network, half of the example's do."""
    torch.manual_seed(0)
    model, path = UNet().eval(), tmp_path / "model.onnx"
    exported = export(model, torch.randn(1, 1, 12, 8), path, dynamic=["batch", "image"], progress=False)
    assert exported.inputs == {"image": ["batch", 1, "height", "width"]}
    assert exported.compared[-1] == {"batch": 2, "height": 6, "width": 4}
    images = torch.randn(3, 1, 10, 22)
    np.testing.assert_allclose(in_onnxruntime(path, {"image": images})["relu"], model(images)["relu"], atol=1e-5)


class Pair(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + y, x - y


def test_positions_are_outputs_and_all_sizes_fixed_where_nothing_may_change(tmp_path: Path) -> None:
    inputs = (torch.randn(2, 3), torch.randn(2, 3))
    exported = export(Pair(), inputs, tmp_path / "model.onnx", dynamic=[], progress=False)
    assert exported.outputs == ("output.0", "output.1")
    assert exported.inputs == {"x": [2, 3], "y": [2, 3]}
    assert exported.compared == ({"batch": 2},)
    assert "\nbatch      2 only: as asked.\n" in str(exported)
    shapes = [each.shape for each in onnxruntime.InferenceSession(tmp_path / "model.onnx").get_inputs()]
    assert shapes == [[2, 3], [2, 3]]


class CountsTokens(nn.Module):
    """Its code decides by the length, so a graph holds for one length only."""

    def __init__(self, strict: bool) -> None:
        super().__init__()
        self.embedding, self.strict = nn.Embedding(20, 8), strict

    def forward(self, ids: Tensor) -> Tensor:
        if self.strict and ids.shape[1] != 6:
            raise ValueError("six tokens, please")
        return torch.stack([self.embedding(ids[:, i]) * i for i in range(ids.shape[1])], 1)


@pytest.mark.parametrize(
    ("strict", "why"),
    [(True, "the model takes no other .ValueError: six tokens, please"), (False, "cannot be exported to torch.export")],
    ids=["the model refuses", "the exporter does"],
)
def test_a_length_that_cannot_change_is_named_and_the_batch_still_can(strict: bool, why: str, tmp_path: Path) -> None:
    ids = torch.randint(20, (2, 6))
    exported = export(CountsTokens(strict), ids, tmp_path / "model.pt2", to="torch-export", progress=False)
    assert exported.inputs == {"ids": ["batch", 6]}
    assert list(exported.fixed_because) == ["sequence"]
    assert f"\nsequence   6 only: {exported.fixed_because['sequence']}\n" in str(exported)
    assert exported.batches == (2, 1, 3)
    assert re.search(why, exported.fixed_because["sequence"])


class Convolves(nn.Module):
    """As many channels as steps, of which only the steps may change."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, 4, 3, padding=1)

    def forward(self, signal: Tensor) -> Tensor:
        return self.conv(signal)


def test_features_are_told_from_steps_by_the_model(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    assert export(Convolves(), torch.randn(2, 6, 6), path, to="torch-export", progress=False).inputs == {
        "signal": ["batch", 6, "sequence"]
    }
    linear = export(nn.Linear(6, 4), torch.randn(2, 5, 6), path, to="torch-export", progress=False)
    assert linear.inputs == {"input": ["batch", "sequence", 6]}
    assert export(nn.Linear(6, 4), torch.randn(2, 6), path, to="torch-export", progress=False).fixed_because == {}


@dataclass
class Scored:
    scores: Tensor
    state: list[Tensor]


class ReturnsDataclass(nn.Module):
    def forward(self, x: Tensor) -> Scored:
        return Scored(x + 1, [x - 1])


def test_dataclasses_are_taken_apart_once_torch_knows_them(tmp_path: Path) -> None:
    x, path = torch.ones(2, 3), tmp_path / "model.onnx"
    with pytest.raises(UsageError, match=r"returns a Scored, .*; call torch.export.register_dataclass.Scored. first"):
        export(ReturnsDataclass(), x, path, progress=False)
    torch.export.register_dataclass(Scored)
    assert export(ReturnsDataclass(), x, path, progress=False).outputs == ("scores", "state.0")


@pytest.mark.parametrize(
    ("dynamic", "words"),
    [
        ("batch", r"dynamic is 'batch'; pass the kinds of axes in a list, such as \['batch'\]."),
        (["length"], "There is no kind of axis 'length'; choose one of batch, sequence, image."),
    ],
)
def test_axes_that_do_not_exist(dynamic: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        export(Pair(), (torch.ones(2, 3), torch.ones(2, 3)), tmp_path / "model.onnx", dynamic=dynamic)
