"""Measuring on CUDA, up to the kernels: models are moved, timed by events, and kept apart from the processor's."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import secateur
from secateur.base.records import from_json, to_json
from secateur.bench.clocks import clock_on, cuda_clock, thread_clock
from secateur.bench.runtimes import available_runtimes
from secateur.bench.sheet import Sheet
from secateur.channels.target.single_layer import ON_PROCESSOR, Place, lone_layer, place_of_layers
from secateur.channels.target.slots import Layer
from tests.support.stand_in_cuda import stand_in_for_cuda

X = torch.ones(2, 16)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return stand_in_for_cuda(monkeypatch)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def test_models_are_measured_on_a_device_and_stay_where_they_are(asked: list[str], model: nn.Module) -> None:
    other = nn.Sequential(nn.Linear(16, 4))
    sheet = secateur.measure({"dense": model, "small": other}, X, device="cuda", max_seconds=0, progress=False)
    assert asked[:3] == ["model", "model", "inputs"]
    assert "synchronize" in asked
    assert not hasattr(model, "on_stand_in")
    (item,) = sheet.measurements
    assert item.title == "eager, float32, batch 1, CUDA"
    assert item.peak_megabytes == {"dense": 3.5, "small": 3.5}
    assert sheet.to_json()["measurements"][0]["device"] == "cuda"
    assert sheet.machine.gpu == "Stand-in 3000"


def test_a_model_that_is_there_already_is_timed_there(asked: list[str], model: nn.Module) -> None:
    model.on_stand_in = True
    comparison = secateur.compare({"a": model, "b": model}, X, max_seconds=0)
    assert comparison.device == "cuda"
    assert "model" not in asked
    assert str(comparison).startswith("eager, float32, CUDA, ")
    assert secateur.compare({"a": nn.Linear(16, 4)}, X, device="cuda", max_seconds=0).place == "CUDA"
    assert secateur.compare({"a": nn.Linear(16, 4)}, X, device="cpu", max_seconds=0).place == "1 thread"


def test_a_runtime_of_the_processor_says_so_even_if_the_model_is_elsewhere(asked: list[str], model: nn.Module) -> None:
    model.on_stand_in = True
    comparison = secateur.compare({"a": model}, X, runtime="onnxruntime", max_seconds=0)
    assert (comparison.device, comparison.place) == ("cpu", "1 thread")


def test_what_cannot_be_is_refused(asked: list[str], model: nn.Module) -> None:
    assert available_runtimes("cuda") == ["eager", "compile"]
    with pytest.raises(secateur.UsageError, match="onnxruntime runs on the processor here, not on CUDA; choose eager"):
        secateur.measure(model, X, runtimes=["eager", "onnxruntime"], device="cuda")
    with pytest.raises(secateur.UsageError, match="sparse runs on the processor"):
        secateur.compare({"a": model}, X, runtime="sparse", device="cuda")
    with pytest.raises(secateur.UsageError, match="leave the device out"):
        secateur.compare({"a": lambda: 1}, device="cuda")
    with pytest.raises(secateur.UsageError, match="openvino runs on the processor"):
        secateur.plan_channels(model, X, target="latency=0.5", runtime="openvino", device="cuda")
    with pytest.raises(secateur.UsageError, match="device belongs to a latency"):
        secateur.Target("macs=50%", device="cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_gpu_nothing_is_measured(model: nn.Module) -> None:
    for call in (
        lambda: secateur.measure(model, X, device="cuda"),
        lambda: secateur.compare({"a": model}, X, device="cuda"),
        lambda: secateur.plan_channels(model, X, target="latency=0.5", device="cuda"),
        lambda: secateur.prune(model, target="latency=0.5", device="cuda", example_inputs=X),
    ):
        with pytest.raises(secateur.UsageError, match="There is no CUDA device here"):
            call()


@pytest.mark.filterwarnings("ignore::secateur.SecateurWarning")
def test_a_latency_is_met_on_a_device(asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECATEUR_CACHE", str(tmp_path))
    model, inputs = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)), torch.ones(64, 512)
    plan = secateur.plan_channels(model, inputs, target="latency=0.7", device="cuda", progress=False)
    assert plan.outcome is not None
    assert "CUDA, batch 64" in str(plan.outcome)
    assert "layer in torch.float32" in asked
    assert asked.index("model") < asked.index("layer in torch.float32")
    assert not hasattr(model, "on_stand_in")


def test_layers_are_timed_in_the_type_of_the_model_on_a_gpu(asked: list[str], model: nn.Module) -> None:
    assert place_of_layers(model.half(), "eager") == ON_PROCESSOR
    model.on_stand_in = True
    assert place_of_layers(model, "eager") == Place(torch.device("cuda"), torch.float16)
    assert place_of_layers(model, "onnxruntime") == ON_PROCESSOR
    assert str(ON_PROCESSOR) == ""
    assert str(place_of_layers(model, "compile")) == " · cuda torch.float16"


@pytest.mark.parametrize(
    "layer",
    [
        Layer("linear", 1, 4, 8, 16),
        Layer("product", 2, 4, 8, 16),
        Layer("convolution", 1, 1, 8, 4, 2, (9, 9), (3, 3), (1, 1), (1, 1), (1, 1), (0, 0)),
        Layer("transposed convolution", 1, 1, 8, 4, 2, (9, 9), (3, 3), (1, 1), (1, 1), (1, 1), (0, 0)),
    ],
    ids=lambda layer: layer.kind,
)
def test_a_lone_layer_is_made_on_the_device(layer: Layer) -> None:
    """Tensors without numbers stand in: torch still checks that all of them lie on one device."""
    with FakeTensorMode():
        call, clock = lone_layer(layer, "eager", 1, Place(torch.device("cuda"), torch.bfloat16))
        output = call()
    assert (output.device.type, output.dtype) == ("cuda", torch.bfloat16)
    assert clock is cuda_clock
    assert clock_on(torch.device("cpu"), 1) is thread_clock


def test_the_page_of_a_run_keeps_both_devices(asked: list[str], model: nn.Module, tmp_path: Path) -> None:
    own = {"dense": model, "pruned": nn.Sequential(nn.Linear(16, 4))}
    result = secateur.prune(
        nn.Linear(16, 4), 0.5, eval_data=[(X, torch.zeros(2, dtype=torch.long))], run_dir=tmp_path / "run", repair=0
    )
    assert result is not None
    for device in ("cpu", "cuda"):
        sheet = secateur.measure(own, X, device=device, max_seconds=0, progress=False)
        page = secateur.report(tmp_path / "run", sheet=sheet, name="pruned")
    assert "eager, batch 1, CUDA" in page.read_text() or "CUDA" in page.read_text()
    stored = json.loads((tmp_path / "run" / "report.json").read_text())["sheet"]["measurements"]
    assert [item["comparison"]["device"] for item in stored] == ["cpu", "cuda"]
    for item in stored:
        del item["comparison"]["device"]  # as earlier versions wrote it
    assert {
        item.comparison.device
        for item in from_json(Sheet, {**to_json(sheet), "measurements": stored}).measurements
    } == {"cpu"}
