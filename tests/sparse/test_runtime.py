"""The sparse engine as a runtime: beside the others in Python, on the command line and on the report page."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import secateur
from secateur import SecateurError, UsageError
from secateur.bench.clocks import thread_clock, wall_clock
from secateur.bench.differences import largest_difference
from secateur.bench.runtimes import RUNTIMES, available_runtimes
from secateur.bench.sheet import measure
from secateur.commands.app import app
from secateur.examples.small_resnet import SmallResNet
from secateur.pages.run_report import load_report
from secateur.sparse import engine
from secateur.sparse import trial as choice
from tests.commands.test_task_file import TASK
from tests.support.sparse_models import CONTROL, FASTER, masked

NO_COMPILER = "the kernels were not compiled; install a C++ compiler, then secateur once more"

needs_kernels = pytest.mark.skipif("sparse" not in available_runtimes(), reason="there are no kernels here")


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer that is measured is found to be faster sparse."""
    monkeypatch.setattr(choice, "time_against_dense", lambda *_: (FASTER, CONTROL))


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batches that engines were made for."""
    made: list[int] = []
    real = engine.sparse_engine

    def counted(model: nn.Module, example_inputs: Tensor, **options: Any) -> engine.SparseEngine:
        made.append(len(example_inputs))
        return real(model, example_inputs, **options)

    monkeypatch.setattr("secateur.sparse.sparse_engine", counted)
    return made


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secateur.sparse.why_unavailable", lambda: NO_COMPILER)


@needs_kernels
@pytest.mark.usefixtures("faster")
def test_models_are_compared_in_the_engine_and_stay_as_they_are() -> None:
    dense = masked(SmallResNet((8, 16)), zeros=0.0).train()
    zeros = masked(copy.deepcopy(dense))
    before = copy.deepcopy(zeros.state_dict())
    models, images = {"dense": dense, "zeros": zeros}, torch.randn(2, 1, 28, 28)
    comparison = secateur.compare(models, images, runtime="sparse", max_seconds=0)
    assert (comparison.runtime, comparison.precision) == ("sparse", "float32")
    assert comparison.notes == {"dense": "0 of 7 layers run sparse", "zeros": "7 of 7 layers run sparse"}
    assert str(comparison).endswith("dense: 0 of 7 layers run sparse.\nzeros: 7 of 7 layers run sparse.")
    assert json.loads(json.dumps(comparison.to_json()))["notes"] == comparison.notes
    assert zeros.training
    assert all(torch.equal(zeros.state_dict()[name], tensor) for name, tensor in before.items())


@needs_kernels
@pytest.mark.usefixtures("faster")
def test_what_is_loaded_computes_what_eager_pytorch_computes() -> None:
    model, images = masked(SmallResNet((8, 16)), zeros=0.7).eval(), torch.randn(2, 1, 28, 28)
    loaded = RUNTIMES["sparse"].load(model, images, 1)
    for inputs in (images, torch.randn(5, 1, 28, 28)):
        eager = RUNTIMES["eager"].load(model, inputs, 1).outputs(inputs)
        assert loaded.note(inputs) == "7 of 7 layers run sparse"
        assert largest_difference(eager, loaded.outputs(inputs)) < 1e-5
    assert loaded.clock is thread_clock
    assert RUNTIMES["sparse"].load(nn.Linear(2, 2), torch.ones(1, 2), 2).clock is wall_clock


@needs_kernels
@pytest.mark.usefixtures("faster")
def test_layers_are_chosen_once_for_each_batch(engines: list[int]) -> None:
    models = {"dense": nn.Linear(64, 64), "zeros": masked(nn.Linear(64, 64))}
    sheet = measure(models, torch.randn(2, 64), runtimes="sparse", batches=(8, 1), max_seconds=0, progress=False)
    assert sorted(engines) == [1, 1, 1, 8, 8, 8], "the two models and the null control, and never for two examples"
    assert [m.comparison.notes["zeros"] for m in sheet.measurements] == ["1 of 1 layers run sparse"] * 2
    assert str(sheet).count("zeros: 1 of 1 layers run sparse.") == 2
    assert sheet.to_json()["measurements"][0]["notes"]["dense"] == "0 of 1 layers run sparse"


def test_other_runtimes_have_nothing_to_note() -> None:
    comparison = secateur.compare({"dense": nn.Linear(4, 4)}, torch.ones(1, 4), max_seconds=0)
    assert comparison.notes == {}
    assert "run sparse" not in str(comparison)


@needs_kernels
def test_a_model_that_the_engine_cannot_take_is_one_sentence_and_the_others_go_on() -> None:
    half, x = nn.Linear(4, 4).bfloat16(), torch.ones(2, 4, dtype=torch.bfloat16)
    with pytest.raises(UsageError, match=r"dense in sparse: weight is bfloat16.*convert it with model\.float\(\)\.$"):
        secateur.compare({"dense": half}, x, runtime="sparse")
    sheet = measure(half, x, runtimes=["sparse", "eager"], batches=(1, 8), max_seconds=0, progress=False)
    assert [(m.comparison.runtime, m.batch) for m in sheet.measurements] == [("eager", 1), ("eager", 8)]
    (refusal,) = sheet.refusals
    assert str(refusal).startswith("Not measured: model in sparse: weight is bfloat16")
    elsewhere = nn.Linear(4, 4, device="meta")  # as one on a GPU
    with pytest.raises(SecateurError, match=r"dense in sparse: weight is on meta, and the engine runs on a CPU"):
        secateur.compare({"dense": elsewhere}, torch.ones(2, 4), runtime="sparse")


@pytest.mark.usefixtures("no_kernels")
def test_without_kernels_there_is_no_such_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "sparse" not in available_runtimes()
    assert "eager" in available_runtimes()
    with pytest.raises(
        UsageError, match=f"sparse cannot run here: {NO_COMPILER.replace('+', '.')}, or choose"
    ) as raised:
        secateur.compare({"dense": nn.Linear(2, 2)}, torch.ones(1, 2), runtime="sparse")
    assert "\n" not in str(raised.value)
    (tmp_path / "task.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["prune", "task.py", "--sparsity", "90%", "--runtime", "sparse", "-o", "out"])
    assert done.exit_code == 2
    assert "The runtime sparse cannot run here" in " ".join(done.stderr.split())
    assert not Path("out").exists(), "before anything was trained"


@needs_kernels
def test_a_latency_is_not_met_where_fewer_channels_are_not_the_point() -> None:
    model, images = SmallResNet((8, 16)), torch.randn(2, 1, 28, 28)
    others = r"choose one of eager, .*\.$"

    def refused(plan: Callable[[], object]) -> None:
        with pytest.raises(UsageError, match=f"The target latency=0.5 is met by removing channels.*{others}") as raised:
            plan()
        assert "sparse," not in str(raised.value)

    refused(lambda: secateur.plan_channels(model, images, target="latency=0.5", runtime="sparse"))
    options = {"example_inputs": images, "train_data": [], "eval_data": [], "finetune": 1}
    refused(lambda: secateur.prune(model, target="latency=0.5", runtime="sparse", **options))
    with pytest.raises(UsageError, match="runtime belongs to a latency"):
        secateur.plan_channels(model, images, target="macs=50%", runtime="sparse")


@needs_kernels
@pytest.mark.usefixtures("faster")
def test_a_run_is_pruned_measured_and_reported_in_the_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    options = ["--train", "1", "--finetune", "1", "--sparsity", "90%", "--runtime", "sparse"]
    pruned = CliRunner().invoke(app, ["prune", "task.py", *options, "-o", "out"])
    assert pruned.exit_code == 0, pruned.stderr
    assert "sparse, float32, batch 1, one thread" in pruned.stdout
    assert "dense: 0 of 3 layers run sparse." in pruned.stdout
    assert re.search(r"^out: [123] of 3 layers run sparse\.$", pruned.stdout, re.MULTILINE)
    again = CliRunner().invoke(app, ["measure", "out", "--runtime", "sparse", "--runtime", "eager", "--batch", "2"])
    assert again.exit_code == 0, again.stderr
    assert again.stdout.count("run sparse.") == 2
    assert [(item.comparison.runtime, item.batch) for item in load_report("out").measurements] == [
        ("sparse", 1),
        ("sparse", 2),
        ("eager", 2),
    ]
    assert "sparse, batch 2" in Path("out/report.html").read_text(encoding="utf-8")
