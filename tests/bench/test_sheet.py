"""The sheet: sizes, speed and memory of several models, runtimes and batches, and what could not be measured."""

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur import UsageError
from secateur.bench.runtimes import RUNTIMES, Loaded, Runtime
from secateur.bench.sheet import Sheet, measure
from secateur.examples.small_resnet import SmallResNet
from tests.bench.test_runtimes import runtime_that_adds


@pytest.fixture
def image() -> Tensor:
    return torch.randn(2, 1, 28, 28)


def test_models_runtimes_and_batches_are_on_one_sheet(image: Tensor, capsys: pytest.CaptureFixture[str]) -> None:
    models = {"dense": SmallResNet((8, 16)).train(), "narrow": SmallResNet((4, 8)).eval()}
    before = copy.deepcopy(models)
    sheet = measure(models, image, runtimes=["eager", "onnxruntime"], batches=(4, 1, 4), max_seconds=0)
    assert sheet.baseline == "dense"
    assert not sheet.refusals
    expected = [("eager", 1), ("eager", 4), ("onnxruntime", 1), ("onnxruntime", 4)]
    assert [(m.comparison.runtime, m.batch) for m in sheet.measurements] == expected
    for measurement in sheet.measurements:
        assert measurement.comparison.precision == "float32"
        assert list(measurement.comparison.timings) == ["dense", "narrow"]
        timing = measurement.comparison["narrow"]
        assert 0 < timing.median <= timing.p99
        assert measurement.throughput("narrow") == pytest.approx(measurement.batch / timing.median)
        assert measurement.peak_megabytes.keys() == models.keys()
    dense, narrow = sheet.footprints.values()
    assert dense.size.parameters == sum(p.numel() for p in models["dense"].parameters())
    assert narrow.macs < dense.macs
    for name, model in models.items():
        assert model.training == before[name].training
        for key, tensor in before[name].state_dict().items():
            assert torch.equal(model.state_dict()[key], tensor), "the models stay as they are"
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 * (3 + 2)
    assert lines[3] == "measure: 4/10 eager: timing batch 1"


def test_macs_are_of_one_example_and_stored_as_plain_numbers(image: Tensor) -> None:
    sheet = measure(SmallResNet((8, 16)), image, max_seconds=0, progress=False)
    other = measure(SmallResNet((8, 16)), image[:1], max_seconds=0, progress=False)
    assert sheet.footprints["model"].macs == other.footprints["model"].macs
    stored = json.loads(json.dumps(sheet.to_json()))
    assert stored["models"]["model"]["macs"] == sheet.footprints["model"].macs
    (measurement,) = stored["measurements"]
    assert {"runtime": "eager", "precision": "float32", "threads": 1, "batch": 1}.items() <= measurement.items()
    assert {"median", "p99", "ratio", "low", "high", "examples_per_second", "peak_megabytes"} <= measurement["models"][
        "model"
    ].keys()
    assert {"cpu", "governor", "load", "cores", "torch"} <= stored["machine"].keys()
    assert isinstance(measurement["load"], float)


def test_the_printed_sheet_says_what_was_measured_and_where() -> None:
    models = {"dense": nn.Linear(9, 9), "narrow": nn.Linear(9, 3)}
    text = str(measure(models, torch.randn(2, 9), batches=[3], threads=2, max_seconds=0, progress=False))
    assert "eager, float32, batch 3, 2 threads" in text
    assert "× dense" in text
    assert "null control" in text
    assert "governor" in text
    assert any(word in text for word in ("faster", "slower", "no different", "too noisy"))


def runtime_without(kind: type[nn.Module]) -> Runtime:
    def load(model: nn.Module, example_inputs: Any, threads: int) -> Loaded:
        if isinstance(model, kind):
            raise NotImplementedError(f"no {kind.__name__} here\nand more")
        return RUNTIMES["eager"].load(model, example_inputs, threads)

    return Runtime("picky", (), load)


def test_a_runtime_that_cannot_take_a_model_is_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RUNTIMES, "picky", runtime_without(nn.Sequential))
    x, plain, refused = torch.ones(2, 3), nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3))
    sheet = measure(refused, x, runtimes=["picky", "eager"], max_seconds=0, progress=False)
    assert [m.comparison.runtime for m in sheet.measurements] == ["eager"]
    (refusal,) = sheet.refusals
    assert (refusal.runtime, refusal.model, refusal.batch) == ("picky", "model", None)
    assert "Not measured: model in picky: It cannot run (NotImplementedError: no Sequential here)." in str(sheet)

    pruned = measure({"dense": plain, "pruned": refused}, x, runtimes="picky", max_seconds=0, progress=False)
    (measurement,) = pruned.measurements
    assert list(measurement.comparison.timings) == ["dense"]
    assert [refusal.model for refusal in pruned.refusals] == ["pruned"]

    baseline = measure({"dense": refused, "pruned": plain}, x, runtimes="picky", max_seconds=0, progress=False)
    assert not baseline.measurements
    assert [refusal.model for refusal in baseline.refusals] == ["dense", "pruned"]
    assert "dense does not run there" in baseline.refusals[1].reason


def test_other_numbers_are_reported_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RUNTIMES, "odd", runtime_that_adds(0.5))
    sheet = measure(nn.Linear(3, 3), torch.ones(1, 3), runtimes=["odd", "eager"], max_seconds=0, progress=False)
    assert [m.comparison.runtime for m in sheet.measurements] == ["eager"]
    assert "It computes something else there" in sheet.refusals[0].reason
    assert sheet.refusals[0].batch == 1


def test_all_means_all_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compile", "sparse", "onnxruntime", "openvino"):  # they take their time, and are tested by themselves
        monkeypatch.delitem(RUNTIMES, name)
    monkeypatch.setitem(RUNTIMES, "odd", runtime_that_adds(0))
    monkeypatch.setitem(RUNTIMES, "absent", Runtime("absent", ("package_that_is_missing",), RUNTIMES["eager"].load))
    sheet = measure(nn.Linear(3, 3), torch.randn(2, 3), runtimes="all", max_seconds=0, progress=False)
    assert [m.comparison.runtime for m in sheet.measurements] == ["eager", "odd"]
    with pytest.raises(UsageError, match="The runtime absent needs package_that_is_missing"):
        measure(nn.Linear(3, 3), torch.randn(2, 3), runtimes="absent")


def test_inputs_without_a_batch_are_run_as_they_are() -> None:
    class Grid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, steps: int) -> Tensor:
            return self.linear(torch.ones(steps, 3))

    sheet = measure(Grid(), {"steps": 4}, max_seconds=0, progress=False)
    assert isinstance(sheet, Sheet)
    assert sheet.footprints["model"].macs == 4 * 3 * 2
    with pytest.raises(UsageError, match="no tensor with an axis for the batch"):
        measure(Grid(), {"steps": 4}, batches=[8])


class Uncopyable(nn.Linear):
    def __deepcopy__(self, memo: object) -> "Uncopyable":
        raise TypeError("one of a kind")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"models": Uncopyable(3, 3)}, r"The model cannot be copied \(TypeError: one of a kind\)"),
        ({"models": {}}, "Give a model, or models by name"),
        ({"models": {"dense": 3}}, "Give a model, or models by name"),
        ({"models": {"null control": nn.Linear(3, 3)}}, "'null control' is taken"),
        ({"runtimes": ["eagre"]}, "Did you mean 'eager'"),
        ({"batches": [0]}, r"batches is \[0\]"),
        ({"batches": []}, r"batches is \[\]"),
        ({"batches": "8"}, "batches is '8'"),
        ({"threads": 0}, "threads is 0"),
        ({"example_inputs": 3}, "example_inputs is a int"),
        ({"example_inputs": torch.ones(1, 7)}, r"model does not run on one example \(RuntimeError: mat1 and mat2"),
    ],
)
def test_calls_that_cannot_work(options: dict[str, Any], sentence: str) -> None:
    call = {"models": nn.Linear(3, 3), "example_inputs": torch.ones(1, 3), **options}
    with pytest.raises(UsageError, match=sentence):
        measure(call.pop("models"), call.pop("example_inputs"), **call)
