"""`secateur hardware --device cuda` up to the kernels, on a stand-in that fails in every way that GPUs do."""

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import secateur
from secateur.base.records import to_json
from secateur.bench.machine import this_machine
from secateur.bench.turns import Turns, time_in_turns
from secateur.commands.app import app
from secateur.pages.cuda_console import print_gpu
from secateur.studies.gpu.cuda_child import ChildWorker, answer_lines
from secateur.studies.gpu.cuda_device import CudaGpu
from secateur.studies.gpu.cuda_products import BLOCKS, DENSE, GPU_FORMATS, TWO_OF_FOUR, Case, time_product
from secateur.studies.gpu.cuda_report import GpuReport
from secateur.studies.gpu.cuda_study import GpuExtent, study_gpu
from secateur.studies.machine import cached
from tests.support.hardware_reports import FakeTimer
from tests.support.stand_in_gpu import (
    ILLEGAL_ACCESS,
    NO_KERNEL,
    OUT_OF_MEMORY,
    SMALL,
    UNSUPPORTED_SHAPE,
    StandInGpu,
    StandInWorker,
    everything_fails_once,
)

CASE = Case(128, 0.9, "float16", 8, 4.0, {})


@pytest.fixture(scope="module")
def report() -> GpuReport:
    return study_gpu(SMALL, StandInWorker(StandInGpu(everything_fails_once), FakeTimer()), progress=False)


@pytest.fixture
def command(report: GpuReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    ran: list[str] = []
    monkeypatch.setenv("SECATEUR_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Stand-in 3000")
    machine = this_machine()
    monkeypatch.setattr(cached, "study_gpu", lambda progress: ran.append("gpu") or replace(report, machine=machine))
    return ran


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_format_holds_the_zeros_that_it_says(dtype: str) -> None:
    timer, seen = FakeTimer(), {}

    class Gpu(StandInGpu):
        def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            seen[self._kind(weight)] = weight.to_dense()
            return super().linear(x, weight)

    answer = time_product(Case(128, 0.75, dtype, 3, 4.0, {}), Gpu(), timer)
    assert answer.stopped_by == ""
    assert answer.product.refused == {}
    assert list(answer.product.timings) == [DENSE, *GPU_FORMATS]
    assert {output.dtype for output in timer.outputs[0].values()} == {getattr(torch, dtype)}
    assert {name: tuple(timer.outputs[0][name].shape) for name in ("30 % narrower", "half as wide", "half + 8")} == {
        "30 % narrower": (3, 88),
        "half as wide": (3, 64),
        "half + 8": (3, 72),
    }
    assert int((seen["csr"] != 0).sum()) == 128 * 128 // 4
    for block in BLOCKS.values():
        whole = (seen[f"bsr{block}"] != 0).unfold(0, block, block).unfold(1, block, block).flatten(2)
        assert (whole.all(-1) == whole.any(-1)).all()
        assert int(whole.all(-1).sum()) == (128 // block) ** 2 // 4


def test_the_real_timer_takes_turns_by_the_clock_of_the_gpu() -> None:
    gpu = StandInGpu(real_time=True)

    def timer(calls: Any, *, max_seconds: float, clock: Any) -> Turns:
        assert clock == gpu.clock
        return time_in_turns(calls, clock=clock, max_seconds=0, min_rounds=2)

    answer = time_product(Case(64, 0.9, "float16", 2, 60.0, {}), gpu, timer)
    assert answer.product.control is not None
    assert all(timing.seconds > 0 for timing in answer.product.timings.values())
    assert len(gpu.clocked) > 2 * len(GPU_FORMATS)


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (OUT_OF_MEMORY, "it does not fit in the GPU's memory"),
        (NO_KERNEL, 'torch has no kernel for it here (NotImplementedError: "addmm_sparse" not implemented for'),
        (UNSUPPORTED_SHAPE, "it does not run here (RuntimeError: Error original_tensor.shape"),
        (ValueError("autotuning"), "it does not run here (ValueError: autotuning)"),
        (1.5, "it computes something else: off by 50 % of the largest number"),
        (float("nan"), "it computes something else: off by nan % of the largest number"),
    ],
)
def test_what_fails_is_told_in_a_sentence_and_the_rest_goes_on(failure: Exception | float, sentence: str) -> None:
    gpu = StandInGpu(lambda kind, x: failure if kind == "csr" else None)
    answer = time_product(CASE, gpu, FakeTimer())
    assert answer.stopped_by == ""
    assert list(answer.product.refused) == ["CSR"]
    assert answer.product.refused["CSR"].startswith(sentence)
    assert "\n" not in answer.product.refused["CSR"]
    assert list(answer.product.timings) == [DENSE, *GPU_FORMATS[1:]]
    assert gpu.freed == 2


def test_a_weight_that_cannot_be_compressed_is_told(report: GpuReport) -> None:
    why = report.products[0].refused["2:4, cuSPARSELt"]
    assert why.startswith("it does not run here (RuntimeError: Error original_tensor.shape")
    assert "2:4, CUTLASS" in report.products[0].timings


def test_an_old_card_is_told_what_it_lacks() -> None:
    answer = time_product(CASE, StandInGpu(capability=(7, 5)), FakeTimer())
    reason = "sparse tensor cores came with compute capability 8.0, and this GPU has 7.5"
    assert answer.product.refused == dict.fromkeys(TWO_OF_FOUR, reason)


def test_what_takes_seconds_is_not_timed_in_turn() -> None:
    answer = time_product(CASE, StandInGpu(slow={"csr": 0.3, "dense": 0.3}), FakeTimer())
    assert answer.product.refused == {"CSR": "one call takes 0.3 s, too long to take turns"}
    assert DENSE in answer.product.timings


def test_without_a_dense_product_there_is_nothing_to_compare_with() -> None:
    gpu = StandInGpu(lambda kind, x: OUT_OF_MEMORY if kind == "dense" else None)
    product = time_product(CASE, gpu, FakeTimer()).product
    assert product.timings == {}
    assert product.control is None
    assert product.refused[DENSE] == "it does not fit in the GPU's memory"
    assert set(product.refused) == {DENSE, *GPU_FORMATS}
    assert product.refused["CSR"] == "the dense product does not run, so there is nothing to compare it with"


def test_what_fails_only_in_turn_is_told_as_well() -> None:
    def timer(*args: object, **options: object) -> None:
        raise OUT_OF_MEMORY

    answer = time_product(CASE, StandInGpu(), timer)
    assert answer.stopped_by == ""
    assert set(answer.product.refused) == {DENSE, *GPU_FORMATS}
    assert answer.product.refused["CSR"].startswith("it ran alone, but not in turn with the others (OutOfMemoryError")


def test_a_gpu_that_stops_goes_on_without_what_stopped_it() -> None:
    gpu = StandInGpu(lambda kind, x: ILLEGAL_ACCESS if kind == "bsr32" and x.shape[0] == 8 else None)
    worker = StandInWorker(gpu, FakeTimer())
    found = study_gpu(GpuExtent(128, 0.9, ("float16",), (1, 8, 64)), worker, progress=False)
    assert [case.batch for case in worker.asked] == [1, 8, 8, 64]
    assert found.products[0].refused == {}
    for product in found.products[1:]:
        assert list(product.refused) == ["BSR 32×32"]
        assert product.refused["BSR 32×32"].startswith("it stops the GPU at batch 8: it does not run here (Accelerator")
        assert len(product.timings) == len(GPU_FORMATS)


@pytest.mark.parametrize("where", ["dense", "timing"])
def test_a_gpu_that_stops_in_every_product_is_not_asked_for_ever(where: str) -> None:
    gpu = StandInGpu(lambda kind, x: ILLEGAL_ACCESS if where == kind else None)

    def timer(*args: object, **options: object) -> None:
        gpu.dead = True
        raise ILLEGAL_ACCESS

    worker = StandInWorker(gpu, timer)
    found = study_gpu(GpuExtent(128, 0.9, ("float16",), (1, 8)), worker, progress=False)
    assert len(worker.asked) == 2
    assert found.points == 0
    assert all(set(product.refused) == {DENSE, *GPU_FORMATS} for product in found.products)
    assert found.answers[0] == "Zeros anywhere: not measured."
    print_gpu(found, Console(file=io.StringIO()))


def test_cases_and_answers_are_lines_between_processes() -> None:
    answered = io.StringIO()
    lines = "".join(f"{json.dumps(to_json(CASE))}\n" for _ in range(2))
    answer_lines(io.StringIO(lines), answered, StandInGpu(), FakeTimer())
    first, second = map(json.loads, answered.getvalue().splitlines())
    assert first == second == to_json(time_product(CASE, StandInGpu(), FakeTimer()))


ECHO = """
import sys
for line in sys.stdin:
    if '"batch": 1,' in line:
        print("Segmentation fault", file=sys.stderr)
        sys.exit(3)
    print({answer!r}, flush=True)
"""


def test_a_process_that_dies_is_replaced(tmp_path: Path) -> None:
    answer = time_product(CASE, StandInGpu(), FakeTimer())
    code = ECHO.format(answer=json.dumps(to_json(answer)))
    with ChildWorker((sys.executable, "-c", code)) as worker:
        assert worker.measure(CASE) == answer
        dead = worker.measure(Case(128, 0.9, "float16", 1, 4.0, {"CSR": "it stops the GPU"}))
        assert dead.product.refused[DENSE] == "the process that measured it ended with code 3 (Segmentation fault)"
        assert dead.product.refused["CSR"] == "it stops the GPU"
        assert worker.measure(CASE) == answer


@pytest.mark.skipif(torch.cuda.is_available(), reason="the process would measure")
def test_the_process_for_the_gpu_starts_and_says_what_it_lacks() -> None:
    with ChildWorker() as worker:
        product = worker.measure(CASE).product
    assert product.timings == {}
    assert re.search(r"ended with code 1 \(\w+: .*CUDA", product.refused[DENSE])


def test_the_report_answers_in_sentences_and_survives_its_file(report: GpuReport) -> None:
    assert GpuReport.from_json(json.loads(json.dumps(report.to_json()))) == report
    lines = str(report).splitlines()
    assert lines[0].endswith("on Stand-in 3000 (compute capability 8.6, 12 GB)")
    assert lines[1] == "Zeros anywhere: never faster than dense beyond the noise; 2.00 × dense."
    assert lines[5] == "Widths off the grid: 72 takes up to 1.17 [1.16, 1.17] × the time of 56 (bfloat16, batch 64)."
    assert report.points == sum(len(product.timings) - 1 for product in report.products)


def test_the_console_fits_80_columns_and_says_what_is_missing(report: GpuReport) -> None:
    shown = io.StringIO()
    print_gpu(report, Console(file=shown, width=80))
    text = shown.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for words in ("float16, × dense", "bfloat16, × dense", "null control", "61 °C", "–"):
        assert words in text, words
    assert "CSR, bfloat16, every batch: torch has no kernel" in " ".join(text.split())
    assert "BSR 64×64, float16, batch 64: it does not fit" in " ".join(text.split())


def test_the_page_is_one_self_contained_file(report: GpuReport, tmp_path: Path) -> None:
    page = secateur.report(report, out=tmp_path / "page.html").read_text()
    assert not re.search(r'<(script|link|img|iframe)[^>]+(src|href)="', page)
    assert page.count('class="chart"') == 2
    for answer in report.answers:
        assert answer in page


def test_the_command_measures_once_and_then_shows_what_it_kept(command: list[str], tmp_path: Path) -> None:
    first = CliRunner().invoke(app, ["hardware", "--device", "cuda", "--json"])
    assert first.exit_code == 0, first.output
    assert GpuReport.from_json(json.loads(first.stdout)).products
    second = CliRunner().invoke(app, ["hardware", "--device", "cuda", "-o", "gpu.html"])
    assert second.exit_code == 0, second.output
    assert "In short" in second.stdout
    assert "`secateur hardware --device cuda --again` measures anew" in second.stdout
    assert (tmp_path / "gpu.html").exists()
    assert command == ["gpu"]
    assert secateur.hardware(device="cuda", again=True).points
    assert command == ["gpu", "gpu"]
    (file,) = (tmp_path / "cache").iterdir()
    assert file.name.startswith("cuda-")


def test_without_a_gpu_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    done = CliRunner().invoke(app, ["hardware", "--device", "cuda"])
    assert done.exit_code == 2
    told = " ".join(done.stderr.split())
    assert "There is no CUDA device here: this torch was built without CUDA. See what nvidia-smi says, or use" in told
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(secateur.UsageError, match=r"torch finds no GPU\. See what nvidia-smi says"):
        secateur.hardware(device="cuda")
    with pytest.raises(secateur.UsageError, match="cpu, cuda"):
        secateur.hardware(device="cudda")


def test_the_driver_is_asked_for_clocks_and_may_be_silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = object.__new__(CudaGpu)
    gpu._properties = None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu.clocks() == "unknown"
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho '1410, 1755, 1215, 45'\n")
    driver.chmod(0o755)
    assert gpu.clocks() == "1410 of 1755 MHz, memory 1215 MHz, 45 °C"
