"""int8 files: by the runtime's own tool, from the first examples of the data, with what they cost the metric."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

import secateur
from secateur import SecateurError, UsageError
from secateur.examples.fashion_mnist import load_fashion_mnist
from secateur.examples.small_resnet import SmallResNet
from secateur.formats import quantising
from secateur.formats.exporting import export
from secateur.formats.known_formats import FORMATS
from secateur.loop.task import accuracy
from tests.formats.test_exporting import in_onnxruntime, in_openvino, tiny_bert
from tests.support.cutting import random_states
from tests.support.models import ConvNet, blobs


@pytest.fixture(autouse=True)
def _no_time_for_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantising, "TIMING_SECONDS", 0)


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    """A small residual network, trained briefly and without half of its channels, and its data."""
    torch.manual_seed(0)
    train, test = load_fashion_mnist()
    train_data = DataLoader(Subset(train, range(3000)), 32, shuffle=True)
    eval_data = DataLoader(Subset(test, range(1000)), 250)
    data = {"train_data": train_data, "eval_data": eval_data}
    recipe = secateur.Recipe(lr=1e-2)
    options = {"channels": 0.3, "train": 2, "repair": 0, "finetune": 1, "recipe": recipe, "progress": False}
    result = secateur.prune(SmallResNet((8, 16)), **options, **data)
    return {"model": result.model, **data}


@pytest.mark.parametrize(
    ("to", "suffix", "run"), [("onnx", ".onnx", in_onnxruntime), ("openvino", ".xml", in_openvino)]
)
def test_pruning_and_int8_compose(job: dict[str, Any], to: str, suffix: str, run: Any, tmp_path: Path) -> None:
    path = tmp_path / f"model.int8{suffix}"
    images = next(iter(job["eval_data"]))[0][:2]
    before = random_states()
    exported = export(
        job["model"],
        images,
        path,
        to=to,
        int8=True,
        calibration_data=job["train_data"],
        eval_data=job["eval_data"],
        progress=False,
    )
    assert random_states() == before
    found = exported.int8
    assert found is not None
    assert exported.any_batch
    assert exported.precision == "int8"
    assert found.calibration_examples == 320, "ten batches of 32 are the first to hold 300"

    right = total = 0
    for x, y in job["eval_data"]:
        right += int((run(path, x)[0].argmax(-1) == y.numpy()).sum())
        total += len(y)
    assert found.metric_after == right / total
    assert found.metric_before == pytest.approx(accuracy(job["model"].eval(), job["eval_data"]), abs=1e-3)
    assert found.metric_before > 0.6
    assert found.lost < 0.03
    assert 1e-3 < exported.relative_error < 0.3, "int8 rounds"
    assert found.timing.ratio > 0
    assert f"{found.metric_before:.4f} → {found.metric_after:.4f}: int8 cost" in str(exported)
    assert not list(tmp_path.glob("*.partial"))
    assert "NNCF_CI" not in os.environ
    if to == "onnx":
        graph = onnx.load(path).graph
        assert {"QuantizeLinear", "DequantizeLinear"} <= {node.op_type for node in graph.node}
        layers = sum(p.ndim > 1 for p in job["model"].parameters())
        weights = [each for each in graph.initializer if each.data_type == onnx.TensorProto.INT8 and len(each.dims) > 1]
        assert len(weights) == layers
    else:
        assert path.with_suffix(".bin").stat().st_size < sum(p.numel() for p in job["model"].parameters()) * 2


def quantiser(to: str, write: Any) -> Any:
    chosen = FORMATS[to]
    assert chosen.quantiser is not None
    return dataclasses.replace(chosen, quantiser=dataclasses.replace(chosen.quantiser, write=write))


def test_int8_that_costs_too_much_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A tool that hands in a model with one answer to everything. It is given what the metric gives the model."""
    data = {"train_data": DataLoader(blobs(), 32, shuffle=True), "eval_data": DataLoader(blobs(400, seed=1), 150)}
    model, images = secateur.train(ConvNet(), 3, progress=False, **data).model, torch.randn(2, 4, 4, 4)
    seen: list[Any] = []

    def lazy(source: Path, target: Path, calibration: Any) -> None:
        seen.extend(calibration)
        network = onnx.load(source)
        for weight in network.graph.initializer:
            if weight.name == "output.weight":
                weight.raw_data = bytes(len(weight.raw_data))
        onnx.save(network, target)

    monkeypatch.setitem(FORMATS, "onnx", quantiser("onnx", lazy))
    exported = export(
        model,
        images,
        tmp_path / "model.onnx",
        int8=True,
        calibration_data=data["eval_data"],
        eval_data=data["eval_data"],
        progress=False,
    )
    found = exported.int8
    assert found is not None
    assert found.too_costly
    assert found.metric_after == 0.25
    assert f"int8 cost {found.metric_before - 0.25:.4f} of it, more than the 0.02 allowed" in str(exported)
    expected = [x.numpy() for x, _ in data["eval_data"]][:2]
    assert [len(call) for call in seen] == [1, 1]
    assert all(np.array_equal(call[0], x) for call, x in zip(seen, expected, strict=True))


def test_calibration_needs_no_labels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Any] = []

    def unchanged(source: Path, target: Path, calibration: Any) -> None:
        seen.extend(calibration)
        target.write_bytes(source.read_bytes())

    monkeypatch.setitem(FORMATS, "onnx", quantiser("onnx", unchanged))
    images = torch.randn(8, 4, 4, 4)
    exported = export(
        ConvNet(),
        images[:2],
        tmp_path / "model.onnx",
        int8=True,
        calibration_data=[images[:4], images[4:]],
        eval_data=DataLoader(blobs(8), 4),
        progress=False,
    )
    assert exported.int8 is not None
    assert exported.int8.calibration_examples == 8
    assert np.array_equal(np.concatenate([call[0] for call in seen]), images.numpy())


def test_batches_by_name_with_labels_and_a_config_beside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A metric that asks for the device and gives the model its labels, which the file does not take."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = tiny_bert()
    tokens, labels = torch.randint(20, (12, 8)), torch.arange(12) % 2
    batches = [{"input_ids": tokens[i : i + 4], "labels": labels[i : i + 4]} for i in (0, 4, 8)]

    def right(model: nn.Module, data: Iterable[Any]) -> float:
        device = next(model.parameters()).device
        assert getattr(model, "config", None) is None, "a file has no config, and who asks is told"
        outputs = [model(**{name: x.to(device) for name, x in batch.items()}) for batch in data]
        return float(np.mean([output.logits.sum() for output in outputs]))

    expected = np.mean([model.eval()(**batch).logits.sum().item() for batch in batches])
    exported = export(
        model,
        {"input_ids": tokens[:2]},
        tmp_path / "model.onnx",
        int8=True,
        calibration_data=batches,
        eval_data=batches,
        metric=right,
        progress=False,
    )
    assert exported.int8 is not None
    assert exported.int8.metric_name == "right"
    assert exported.int8.metric_before == pytest.approx(expected, abs=1e-5)
    assert exported.int8.metric_after != exported.int8.metric_before
    assert exported.int8.calibration_examples == 12
    assert exported.inputs == {"input_ids": ["batch", "sequence"]}
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"], "nothing else in the current folder"


def reads_a_layer(model: nn.Module, data: Iterable[Any]) -> float:
    return float(model.hidden.weight.sum())


def needs_more(model: nn.Module, data: Iterable[Any]) -> float:
    return float(model().sum())


def fails(model: nn.Module, data: Iterable[Any]) -> float:
    raise ZeroDivisionError("no batches")


def never_calls(model: nn.Module, data: Iterable[Any]) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("metric", "kind", "words"),
    [
        (reads_a_layer, UsageError, "The metric asks for the model's hidden, which an exported file does not have"),
        (needs_more, SecateurError, "The metric failed on the exported model .TypeError: missing a required argument"),
        (fails, SecateurError, "The metric failed on the exported model .ZeroDivisionError: no batches"),
        (never_calls, UsageError, "The metric never calls the model on the calibration data"),
        (accuracy, SecateurError, "onnxruntime cannot make the model int8 .RuntimeError: broken"),
    ],
)
def test_what_goes_wrong_on_the_way_to_int8_is_one_sentence(
    metric: Any, kind: type[Exception], words: str, written_once: Any, tmp_path: Path
) -> None:
    data = DataLoader(blobs(8), 4)
    with pytest.raises(kind, match=words):
        export(
            ConvNet(),
            torch.randn(2, 4, 4, 4),
            tmp_path / "model.onnx",
            int8=True,
            calibration_data=data,
            eval_data=data,
            metric=metric,
            progress=False,
        )
    assert not list(tmp_path.iterdir())


@pytest.fixture
def written_once(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that is quick, as it has exported the model before, and a tool that is broken."""
    torch.manual_seed(0)
    stored = _STORED.setdefault("onnx", tmp_path_factory.mktemp("stored") / "model.onnx")
    torch.manual_seed(0)
    if not stored.exists():
        export(ConvNet(), torch.randn(2, 4, 4, 4), stored, progress=False)
    torch.manual_seed(0)

    def broken(source: Path, target: Path, calibration: Any) -> None:
        raise RuntimeError("broken")

    def copy(model: nn.Module, interface: Any, path: Path, free: Any) -> None:
        path.write_bytes(stored.read_bytes())

    monkeypatch.setitem(FORMATS, "onnx", dataclasses.replace(quantiser("onnx", broken), write=copy))


_STORED: dict[str, Path] = {}
