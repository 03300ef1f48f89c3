"""`secateur hardware` from the products that it times to what a person sees of them."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import secateur
from secateur import SecateurError
from secateur.bench.counts import KINDS
from secateur.bench.turns import time_in_turns
from secateur.commands.app import app
from secateur.pages.hardware_console import print_hardware
from secateur.pages.hardware_page import save_hardware_page
from secateur.sparse.backend import why_unavailable
from secateur.sparse.layers import SparseLinear
from secateur.studies.machine import cached, sparse_formats
from secateur.studies.machine import machine_study as study
from secateur.studies.machine.ablation import time_ablation
from secateur.studies.machine.hardware_report import HardwareReport
from secateur.studies.machine.machine_study import study_hardware
from secateur.studies.machine.probes import bind, chain, example_input
from secateur.studies.machine.sparse_formats import FORMATS, KERNELS, time_formats
from secateur.studies.machine.structured import cut_network, time_counts, time_layer_cuts
from secateur.studies.machine.tensor_cores import TensorCores, TwoOfFour, what_is_missing
from tests.support.hardware_reports import TINY, FakeTimer, timing

needs_kernels = pytest.mark.skipif(why_unavailable() is not None, reason="there are no kernels to time")


@pytest.fixture(scope="module")
def report() -> HardwareReport:
    return study_hardware(TINY, FakeTimer())


@pytest.fixture
def command(report: HardwareReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command in a folder of its own, with a study that takes no time; the list says how often it ran."""
    ran: list[str] = []
    monkeypatch.setenv("SECATEUR_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cached, "study_hardware", lambda progress: ran.append("study") or report)
    return ran


@needs_kernels
def test_all_formats_compute_the_same_product() -> None:
    timer = FakeTimer()
    curves = time_formats(64, 3, timer, (0.5, 0.99))
    assert [len(curve.points) for curve in curves] == [2] * len(FORMATS)
    for first, last in zip(timer.outputs[::2], timer.outputs[1::2], strict=True):
        csr = last["CSR, W @ X"]
        for name in ("COO, W @ X", "BSR, W @ X"):
            torch.testing.assert_close(last[name], csr)
        for name in ("CSR, F.linear", KERNELS):
            torch.testing.assert_close(first[name].t(), csr)
        assert not torch.allclose(last["dense"], csr)


@needs_kernels
def test_the_kernels_get_zeros_anywhere_and_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[tuple[torch.Tensor, int, bool]] = []

    def pack(weight: torch.Tensor, bias: None, *, block: int = 1, one_example: bool) -> SparseLinear:
        packed.append((weight, block, one_example))
        return real_pack(weight, bias, block=block, one_example=one_example)

    real_pack = SparseLinear.pack
    monkeypatch.setattr(SparseLinear, "pack", pack)
    time_formats(64, 1, FakeTimer(), (0.75,))
    time_formats(64, 3, FakeTimer(), (0.75,))
    assert [(block, one_example) for _, block, one_example in packed] == [(1, True), (4, True), (1, False), (4, False)]
    for weight, block, _ in packed:
        kept = weight != 0
        assert int(kept.sum()) == 64 * 64 // 4
        fours = kept.view(16, 4, 64)
        assert bool((fours == fours[:, :1]).all()) == (block == 4)


def test_the_ablation_takes_away_what_it_says() -> None:
    timer = FakeTimer()
    ablation = time_ablation(40, 3, 0.9, timer)
    outputs = timer.outputs[0]
    torch.testing.assert_close(outputs["CSR, F.linear"], outputs["CSR, W @ X"].t())
    torch.testing.assert_close(outputs["CSR, transposed"], outputs["CSR, F.linear"])
    torch.testing.assert_close(outputs["first columns"], outputs["as many dense"])
    assert not outputs["no entries"].any()
    assert set(outputs) == set(ablation.timings)


@pytest.mark.parametrize("kind", KINDS)
def test_the_onnx_graphs_are_the_torch_layers(kind: str) -> None:
    widths = [12, 12, 12] if kind == "depthwise" else [12, 7, 9]
    layers, x = chain(kind, widths), example_input(kind, 12)
    with torch.no_grad():
        eager = bind(layers, x, "eager")()
    (in_onnxruntime,) = bind(layers, x, "onnxruntime")()
    torch.testing.assert_close(torch.from_numpy(in_onnxruntime), eager, rtol=1e-4, atol=1e-5)


def test_half_of_a_layer_is_half_of_its_channels() -> None:
    timer = FakeTimer()
    cut = time_layer_cuts("linear", "eager", 16, timer)
    shapes = {name: output.shape[1] for name, output in timer.outputs[0].items()}
    assert shapes == {"whole": 16, "output side": 8, "input side": 16, "both sides": 8}
    assert [t.ratio for t in cut.timings.values()] == [2, 3, 4]


def test_networks_are_cut_to_the_counts_asked_for() -> None:
    models = cut_network(TINY.networks[0], {"rounded": (0.7, 4), "as they come": (0.7, 1)})
    assert [model.classifier.in_features for model in models.values()] == [64, 44, 45]


@needs_kernels
def test_the_study_measures_every_part(report: HardwareReport) -> None:
    assert {(cut.network, cut.version) for cut in report.networks} == {
        (network.name, version) for network in TINY.networks for version in study.SHARES
    }
    assert [cut.version for cut in report.rounding] == list(study.UNTIDY)
    assert {curve.kind for curve in report.counts} == set(KINDS)
    assert report.tensor_cores.missing or torch.cuda.is_available()
    assert all(0 < cut.macs_ratio < 1 for cut in report.networks)
    assert not report.notes


def test_a_network_that_a_runtime_refuses_is_left_out_and_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise SecateurError("The model cannot be exported.")

    monkeypatch.setattr(study, "time_networks", refuse)
    report = study_hardware(TINY, FakeTimer())
    assert report.networks == ()
    assert report.notes[0] == "SmallResNet in eager was left out: The model cannot be exported."
    assert report.claims[3].held is None


@needs_kernels
def test_formats_that_torch_lacks_are_left_out_and_noted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    def refuse(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if weight.layout == torch.sparse_csr:
            raise RuntimeError("addmm: not implemented without MKL\nmore")
        return x @ weight.t()

    monkeypatch.setattr(sparse_formats, "F", SimpleNamespace(linear=refuse))
    report = study_hardware(TINY, FakeTimer())
    assert report.notes == (
        "CSR, F.linear: left out. torch cannot compute it here: addmm: not implemented without MKL",
    )
    assert {curve.format for curve in report.formats} == set(sparse_formats.FORMATS) - {"CSR, F.linear"}
    assert report.ablations == ()
    assert "F.linear" not in report.claims[0].because
    print_hardware(report, Console(width=80))
    assert "not implemented without MKL" in " ".join(capsys.readouterr().out.split())
    save_hardware_page(report, tmp_path / "page.html")


def test_without_kernels_the_other_formats_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(layer: SparseLinear, x: torch.Tensor) -> torch.Tensor:
        raise SecateurError("Sparse layers cannot run here: the kernels were not compiled.")

    monkeypatch.setattr(SparseLinear, "forward", refuse)
    report = study_hardware(TINY, FakeTimer())
    assert {curve.format for curve in report.formats} == set(FORMATS) - {KERNELS, "secateur's, 4×1"}
    assert report.notes == (
        "secateur's kernels: left out. Sparse layers cannot run here: the kernels were not compiled.",
        "secateur's, 4×1: left out. Sparse layers cannot run here: the kernels were not compiled.",
    )
    assert "secateur" not in report.claims[0].because
    print_hardware(report, Console(width=80))
    save_hardware_page(report, tmp_path / "page.html")


def test_the_study_leaves_torch_as_it_was() -> None:
    torch.set_num_threads(2)
    state = torch.get_rng_state()
    study_hardware(TINY, FakeTimer())
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), state)


def test_real_time_is_measured_beside_a_null_control() -> None:
    turns = time_in_turns({"a": lambda: sum(range(2000)), "b": lambda: sum(range(20))}, max_seconds=0)
    assert list(turns.timings) == ["a", "b"]
    assert turns.control.rounds >= 20
    assert time_counts("linear", "eager", time_in_turns, (32, 33)).timings[1].seconds > 0


def test_sparse_tensor_cores_are_left_to_the_study_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert what_is_missing().missing == "there is no CUDA device here"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert what_is_missing().missing == "`secateur hardware --device cuda` measures them"


def test_a_report_that_measured_them_itself_is_still_read_and_shown(
    report: HardwareReport, capsys: pytest.CaptureFixture
) -> None:
    measured = TensorCores("", (TwoOfFour(4096, 4096, 64, timing(0.7), timing(1.0)),))
    earlier = replace(report, tensor_cores=measured)
    print_hardware(HardwareReport.from_json(json.loads(json.dumps(earlier.to_json()))), Console(width=200))
    assert "A 2:4 weight of 4096 × 4096 with 64 rows took 0.70 [0.69, 0.71] × dense" in capsys.readouterr().out


@needs_kernels
def test_the_console_fits_80_columns_and_says_everything(report: HardwareReport, capsys: pytest.CaptureFixture) -> None:
    print_hardware(report, Console(width=80))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "F.linear",
        "secateur's, 4×1",
        "break-even",
        "▓ index",
        "there is no CUDA device",
        "null control",
        "`secateur hardware --published` shows every row",
        "The verdict",
        "HELD",
        "On GPUs, as published: HELD. Speed-ups with a wide batch: Sputnik",
    ):
        assert words.lower() in " ".join(text.lower().split()), words
    assert text.count("“") == len(report.claims)
    assert "\nThe verdict\n\n" in "\n".join(line.rstrip() for line in text.splitlines()), "a title stands alone"


def test_the_page_is_one_self_contained_file(report: HardwareReport, tmp_path: Path) -> None:
    save_hardware_page(report, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert not re.search(r'<(script|link|img|iframe)[^>]+(src|href)="', page)
    assert "@import" not in page.partition("<script>")[0]
    assert "prefers-color-scheme" in page
    assert 'name="viewport"' in page
    assert page.count('class="chart"') == 2 + 1 + 2 + 3
    for claim in report.claims:
        assert claim.text in page


def test_the_command_measures_once_and_then_shows_what_it_kept(command: list[str], tmp_path: Path) -> None:
    first = CliRunner().invoke(app, ["hardware", "--json"])
    assert first.exit_code == 0, first.output
    outcome = json.loads(first.stdout)
    assert [claim["verdict"] for claim in outcome["claims"]]
    assert HardwareReport.from_json(outcome).multiple_of("linear") in (1, 2, 4, 8, 16, 32)
    assert (tmp_path / "secateur-hardware.html").exists()
    second = CliRunner().invoke(app, ["hardware", "-o", "other.html"])
    assert second.exit_code == 0
    assert command == ["study"]
    assert "The charts are in other.html." in second.stdout
    assert "`secateur hardware --again` measures anew" in second.stdout
    assert "onnxruntime was not installed then" in second.stdout
    third = CliRunner().invoke(app, ["hardware", "--again"])
    assert command == ["study", "study"]
    assert "measures anew" not in third.stdout


def test_the_function_measures_once_and_then_returns_what_it_kept(command: list[str], report: HardwareReport) -> None:
    assert secateur.hardware(progress=False) == secateur.hardware() == report
    assert command == ["study"]
    assert secateur.hardware(again=True) == report
    assert command == ["study", "study"]
    lines = str(report).splitlines()
    assert lines[0].startswith(f"Measured {report.measured_at} on {report.machine.cpu}")
    assert [claim.text in line for claim, line in zip(report.claims, lines[1:], strict=True)] == [True] * 7


@pytest.mark.filterwarnings("default::secateur.SecateurWarning")
def test_folders_that_cannot_be_written_cost_nothing_that_was_measured(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    (tmp_path / "file").touch()
    done = CliRunner().invoke(app, ["hardware", "-o", "file/page.html"])
    assert done.exit_code == 1
    assert "channels" in done.stdout
    assert "The charts are in" not in done.stdout
    warning, error = done.stderr.splitlines()[-2:]
    assert "not kept for the next time" in warning
    assert "file/page.html could not be written" in error
    assert "Free some space" not in done.stderr


@pytest.mark.filterwarnings("default::secateur.SecateurWarning")
def test_a_damaged_cache_is_measured_anew(command: list[str], tmp_path: Path) -> None:
    CliRunner().invoke(app, ["hardware"])
    (file,) = (tmp_path / "cache").iterdir()
    file.write_text(file.read_text()[:100])
    again = CliRunner().invoke(app, ["hardware"])
    assert again.exit_code == 0
    assert command == ["study", "study"]
    assert "are ignored" in again.stderr
    assert "Traceback" not in again.stderr


def test_ctrl_c_and_typos_are_answered_with_what_to_do(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(progress: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cached, "study_hardware", interrupted)
    stopped = CliRunner().invoke(app, ["hardware"])
    assert stopped.exit_code == 130
    assert "Stopped; nothing was kept." in stopped.stderr
    typo = CliRunner().invoke(app, ["hardware", "--agian"])
    assert typo.exit_code == 2
    assert "--again" in typo.stderr
    folder = CliRunner().invoke(app, ["hardware", "--html", "."])
    assert folder.exit_code == 2
