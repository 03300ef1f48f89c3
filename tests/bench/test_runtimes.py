"""Runtimes compute what eager PyTorch computes, or are refused; inputs find their places; memory is measured."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import secateur
from secateur import SecateurError
from secateur.base.inputs import with_batch
from secateur.bench import memory
from secateur.bench.differences import largest_difference
from secateur.bench.memory import peak_extra_megabytes
from secateur.bench.runner import Runner
from secateur.bench.runtimes import RUNTIMES, Loaded, Runtime, find_runtime
from secateur.bench.size import count_macs

EXPORTED = ["onnxruntime", "openvino"]


class TwoInputs(nn.Module):
    """Inputs of the same shape, which a mix-up would not stop; one of its arguments is never read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, x: Tensor, y: Tensor, scale: Tensor | None = None, unread: Tensor | None = None) -> Any:
        difference = self.first(x) - 2 * self.second(y)
        return {"difference": difference if scale is None else scale * difference, "none": None, "all": [x.sum(), y]}


@pytest.mark.parametrize("runtime", EXPORTED)
@pytest.mark.parametrize(
    "extra",
    [{"scale": None}, {"unread": torch.ones(2, 3), "scale": torch.tensor(3.0)}],
    ids=["two inputs and none", "one that is not read and a scalar"],
)
def test_inputs_by_name_find_their_places_in_any_order(runtime: str, extra: dict[str, Any]) -> None:
    model = TwoInputs().eval()
    inputs = {**extra, "y": torch.randn(2, 3), "x": torch.randn(2, 3)}
    eager = RUNTIMES["eager"].load(model, inputs, 1).outputs(inputs)
    loaded = RUNTIMES[runtime].load(model, inputs, 1)
    assert loaded.precision == "float32"
    assert largest_difference(eager, loaded.outputs(inputs)) < 1e-5
    assert largest_difference(eager, loaded.outputs(dict(reversed(inputs.items())))) < 1e-5


@pytest.mark.parametrize("runtime", EXPORTED)
def test_one_export_serves_every_batch(runtime: str) -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3)).eval()
    images = torch.randn(2, 2, 4, 4)
    loaded = RUNTIMES[runtime].load(model, images, 1)
    for batch in (1, 5):
        more = with_batch(images, batch)
        assert largest_difference([model(more).detach().numpy()], loaded.outputs(more)) < 1e-5


class BatchInTheCode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = [self.linear(x[i]) * (i + 1) for i in range(x.shape[0])]
        return torch.stack(rows)


def test_a_model_that_knows_its_batch_is_exported_for_each() -> None:
    model = BatchInTheCode().eval()
    x = torch.randn(2, 3)
    loaded = RUNTIMES["onnxruntime"].load(model, x, 1)
    for batch in (2, 3):
        more = with_batch(x, batch)
        assert largest_difference([model(more).detach().numpy()], loaded.outputs(more)) < 1e-5


def test_differences_are_relative_to_the_largest_output() -> None:
    a = np.array([[1.0, -100.0], [math.inf, math.nan]])
    assert largest_difference([a], [a.copy()]) == 0
    b = a.copy()
    b[0, 0] = 2.0
    assert largest_difference([a], [b]) == pytest.approx(0.01)
    b[1, 1] = 0.0
    assert largest_difference([a], [b]) == math.inf
    assert largest_difference([a], [a[:1]]) == math.inf
    assert largest_difference([a], []) == math.inf
    assert largest_difference([np.zeros(2)], [np.zeros(2)]) == 0
    assert largest_difference([np.array([True, False])], [np.array([True, True])]) == 1


def runtime_that_adds(error: float, name: str = "odd", precision: str = "float32") -> Runtime:
    def load(model: nn.Module, example_inputs: Any, threads: int) -> Loaded:
        eager = RUNTIMES["eager"].load(model, example_inputs, threads)
        return Loaded(
            eager.bind, precision, eager.clock, lambda outputs: [array + error for array in eager.numbers(outputs)]
        )

    return Runtime(name, (), load)


def test_a_runtime_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    monkeypatch.setitem(RUNTIMES, "odd", runtime_that_adds(0.1))
    with pytest.raises(SecateurError, match=r"dense in odd: It computes something else there: .* differ from eager"):
        secateur.compare({"dense": model}, x, runtime="odd", max_seconds=0)
    monkeypatch.setitem(RUNTIMES, "odd", runtime_that_adds(1e-6))
    secateur.compare({"dense": model}, x, runtime="odd", max_seconds=0)
    looser = 1e-2 * float(model(x).detach().abs().max())
    monkeypatch.setitem(RUNTIMES, "odd", runtime_that_adds(looser, precision="bfloat16"))
    secateur.compare({"dense": model}, x, runtime="odd", max_seconds=0)


def test_numbers_are_compared_in_evaluation_mode_and_leave_the_model_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    runner = Runner("dense", model, find_runtime("onnxruntime"), torch.randn(3, 4), 1)
    runner.ready(torch.randn(3, 4))
    assert model.training
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


def test_a_model_that_a_runtime_cannot_take_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) if x.sum() > 0 else x

    with pytest.raises(
        SecateurError, match=r"dense in onnxruntime: .* exported to ONNX \(\w+: .*data-dependent"
    ) as raised:
        secateur.compare({"dense": Branches()}, torch.ones(1, 3), runtime="onnxruntime")
    assert "\n" not in str(raised.value)
    assert "\x1b" not in str(raised.value)
    assert capfd.readouterr() == ("", ""), "the exporter's own words are not for our users"
    with pytest.raises(SecateurError, match=r"dense in eager: It cannot run \(RuntimeError: mat1 and mat2"):
        secateur.compare({"dense": nn.Linear(2, 2)}, torch.ones(1, 3))
    half, x = nn.Linear(2, 2).bfloat16(), torch.ones(1, 2, dtype=torch.bfloat16)
    for runtime in EXPORTED:
        with pytest.raises(SecateurError, match=f"dense in {runtime}: .*(cannot run|no bfloat16)"):
            secateur.compare({"dense": half}, x, runtime=runtime)


def test_every_model_is_compiled_and_none_falls_back_to_eager() -> None:
    """torch compiles a forward method for so many models of one class, and then runs the others uncompiled."""
    import torch._dynamo
    import torch._inductor.config
    from torch._dynamo.utils import counters

    class Scaled(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(width))

        def forward(self, x: Tensor) -> Tensor:
            return (x.sum(1, keepdim=True) * self.scale).relu()

    torch.compiler.reset()
    counters.clear()
    models = {f"width {width}": Scaled(width) for width in (2, 3)}
    headers = torch._inductor.config.patch(cpp_cache_precompile_headers=False)  # pay for many models, not for two
    with headers, torch._dynamo.config.patch(recompile_limit=1):  # each model keeps a C++ compiler busy
        comparison = secateur.compare(models, torch.randn(2, 2), runtime="compile", max_seconds=0)
    assert counters["stats"]["unique_graphs"] >= len(models)
    assert comparison.runtime == "compile"
    assert list(comparison.timings) == list(models)


def test_macs_inside_fused_kernels_are_counted() -> None:
    length, batch, width, hidden = 5, 2, 8, 16
    lstm = nn.LSTM(width, hidden)
    assert count_macs(lstm, torch.randn(length, batch, width)) == length * batch * 4 * hidden * (width + hidden)

    encoder = nn.TransformerEncoderLayer(width, 2, 4 * width, batch_first=True).eval()
    projections = 4 * width * width + 2 * 4 * width * width
    attention = 2 * length * width
    assert count_macs(encoder, torch.randn(batch, length, width)) == batch * length * (projections + attention)
    assert torch.backends.mkldnn.enabled
    assert torch.backends.mha.get_fastpath_enabled()


def test_peak_memory_is_that_of_the_call_alone() -> None:
    kept: list[Tensor] = []

    def allocate() -> None:
        # Above 32 MiB the allocator always asks the system. Smaller blocks may come from memory that it was unable to
        # give back: in a process where another library has moved the program break, this test saw 32 MB too few.
        kept.append(torch.ones(10, 1_000_000))  # 40 MB
        torch.ones(16, 1_000_000)  # 64 MB, freed at once

    first = peak_extra_megabytes(allocate)
    assert first is not None
    assert 95 < first < 125
    again = peak_extra_megabytes(allocate)
    assert again is not None
    assert 95 < again < 125, "memory that the first call freed does not hide the second's"
    idle = peak_extra_megabytes(lambda: None)
    assert idle is not None
    assert idle < 5


def test_a_system_that_cannot_tell_the_peak_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_RESET", tmp_path / "nowhere" / "clear_refs")
    called: list[int] = []
    assert peak_extra_megabytes(lambda: called.append(1)) is None
    assert called == [1]
    from secateur.bench.sheet import measure

    sheet = measure(nn.Linear(2, 2), torch.ones(1, 2), max_seconds=0, progress=False)
    assert "–" in str(sheet)
    assert json.loads(json.dumps(sheet.to_json()))["measurements"][0]["models"]["model"]["peak_megabytes"] is None
