"""Measuring on CUDA, up to the kernels: models are moved, timed by events, and kept apart from the processor's."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import secateur
from secateur.base.records import to_json
from secateur.bench import comparison
from secateur.bench.clocks import Clock, clock_on, cuda_clock, thread_clock
from secateur.bench.runner import Runner
from secateur.bench.runtimes import RUNTIMES, available_runtimes
from secateur.bench.turns import Turns
from secateur.channels.target import latency
from secateur.channels.target.single_layer import ON_PROCESSOR, Place, lone_layer, place_of_layers
from secateur.channels.target.slots import Layer
from secateur.loop import pruners
from secateur.pages.charts import where
from secateur.pages.gather import with_sheet
from secateur.pages.run_report import RunReport
from tests.support.hardware_reports import timing
from tests.support.report_runs import EXAMPLE, loaders, pruned, real_report, trained
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
    compared = secateur.compare({"a": model, "b": model}, X, max_seconds=0)
    assert compared.device == "cuda"
    assert "model" not in asked
    assert str(compared).startswith("eager, float32, CUDA, ")
    assert secateur.compare({"a": nn.Linear(16, 4)}, X, device="cuda", max_seconds=0).place == "CUDA"
    assert secateur.compare({"a": nn.Linear(16, 4)}, X, device="cpu", max_seconds=0).place == "one thread"


def test_a_runtime_of_the_processor_says_so_even_if_the_model_is_elsewhere(asked: list[str], model: nn.Module) -> None:
    model.on_stand_in = True
    runtimes = [replace(RUNTIMES["eager"], name=name) for name in ("eager", "onnxruntime")]
    runners = [Runner("a", model, runtime, X, 1) for runtime in runtimes]
    assert [runner.device.type for runner in runners] == ["cuda", "cpu"]


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
        lambda: secateur.prune(model, target="latency=0.5", device="cuda", example_inputs=X, **loaders()),
    ):
        with pytest.raises(secateur.UsageError, match="There is no CUDA device here"):
            call()


def test_a_latency_is_met_on_a_device(
    asked: list[str], model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timer(calls: dict[str, Callable[[], object]], *, clock: Clock, **options: object) -> Turns:
        assert clock is cuda_clock
        assert all(clock(call, 1) > 0 for call in calls.values())
        ratios = {name: 0.49 if name == "cut" else 1.0 + 0.1 * i for i, name in enumerate(calls)}
        return Turns({name: timing(ratio) for name, ratio in ratios.items()}, timing(1.0))

    monkeypatch.setenv("SECATEUR_CACHE", str(tmp_path))
    for module in (latency, comparison):
        monkeypatch.setattr(module, "time_in_turns", timer)
    plan = secateur.plan_channels(model, X, target="latency=0.5", device="cuda", progress=False)
    assert plan.outcome is not None
    assert "CUDA, batch 2" in plan.outcome.measured_in
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


def test_the_page_of_a_run_keeps_both_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    found = real_report("zeros")
    stand_in_for_cuda(monkeypatch)
    models = {"dense": trained().model, "zeros": pruned("zeros").model}
    on_cuda = secateur.measure(models, EXAMPLE, device="cuda", max_seconds=0, progress=False)
    both = with_sheet(found, on_cuda)
    assert [(item.batch, item.comparison.device) for item in both.measurements] == [(1, "cpu"), (8, "cpu"), (1, "cuda")]
    assert [where(item) for item in both.measurements][::2] == ["eager, batch 1", "eager, batch 1, CUDA"]
    stored = json.loads(json.dumps(to_json(both)))
    assert repr(RunReport.from_json(stored)) == repr(both)
    for item in stored["sheet"]["measurements"]:
        del item["comparison"]["device"]  # as earlier versions wrote it
    assert {item.comparison.device for item in RunReport.from_json(stored).measurements} == {"cpu"}


def test_example_inputs_go_where_a_model_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    places = []
    monkeypatch.setattr(pruners, "send_to_device", lambda inputs, device: places.append(device) or inputs)
    secateur.prune(trained().model, channels=0.5, example_inputs=EXAMPLE, repair=0, finetune=0, **loaders())
    assert set(places) == {torch.device("cpu")}
