"""What `secateur hardware` makes of numbers: break-even, parts, alignment, verdicts, and the file they are kept in."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from secateur import SecateurWarning, UsageError
from secateur.base.records import Damaged
from secateur.bench.counts import MULTIPLES, CountCurve, largest_divisor, penalties, recommend
from secateur.bench.hardware_cache import hardware_file
from secateur.bench.machine import this_machine
from secateur.sparse.backend import why_unavailable
from secateur.studies.machine.ablation import bars_of
from secateur.studies.machine.cached import load_cached, save_cached
from secateur.studies.machine.claims import (
    Claim,
    counts_matter,
    half_the_channels,
    linear_speedup,
    only_tensor_cores,
    span,
    sparse_can_be_slower,
)
from secateur.studies.machine.hardware_report import HardwareReport
from secateur.studies.machine.machine_study import study_hardware
from secateur.studies.machine.sparse_formats import (
    BATCH_FIRST,
    FORMATS,
    KERNELS,
    FormatCurve,
    SparsityPoint,
    break_even,
)
from secateur.studies.machine.structured import COUNTS, LayerCut, NetworkCut
from secateur.studies.machine.tensor_cores import TensorCores
from tests.support.hardware_reports import TINY, FakeTimer, timing

NO_CORES = TensorCores("there is no CUDA device here")


@pytest.fixture(scope="module")
def report() -> HardwareReport:
    return study_hardware(TINY, FakeTimer())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SECATEUR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([3.0, 2.0, 0.5], 0.9 + 2 / 3 * 0.09),
        ([1.5, 0.5, 0.1], 0.7),
        ([0.9, 0.8, 0.7], 0.5),  # there already
        ([0.9, 1.1, 0.7], 0.9 + 0.25 * 0.09),  # the last crossing counts: from there on it is faster
        ([3.0, 2.0, 1.0], None),
        ([0.5, 0.9, 1.1], None),
        ([], None),
    ],
)
def test_break_even_is_interpolated_between_measurements(ratios: list[float], expected: float | None) -> None:
    assert break_even([0.5, 0.9, 0.99][: len(ratios)], ratios) == (
        None if expected is None else pytest.approx(expected)
    )


def test_the_parts_of_a_product_are_differences_that_add_up_and_are_never_negative() -> None:
    seconds = {
        "dense, F.linear": 10.0,
        "no entries": 1.0,
        "as many dense": 3.0,
        "first columns": 7.0,
        "CSR, W @ X": 6.0,  # below the one before it: noise
        "CSR, F.linear": 20.0,
        "CSR, transposed": 8.0,
    }
    bars = {bar.name: bar for bar in bars_of(seconds)}
    common = {"call and output": 1.0, "multiply": 2.0, "index decode": 4.0, "gather": 0.0}
    assert bars["CSR, W @ X"].parts == common
    assert bars["CSR, F.linear"].parts == {**common, "layout": 14.0}
    assert bars["CSR, transposed"].parts == {**common, "transposes": 2.0}
    assert bars["dense, F.linear"].parts == {"multiply": 10.0}
    quiet = {bar.name: bar for bar in bars_of({**seconds, "CSR, W @ X": 9.0})}
    assert sum(quiet["CSR, F.linear"].parts.values()) == quiet["CSR, F.linear"].seconds == 20.0


def test_growth_with_the_count_is_no_penalty() -> None:
    assert [largest_divisor(count) for count in (63, 62, 60, 56, 48, 64, 128)] == [1, 2, 4, 8, 16, 32, 32]
    square = penalties({count: 1e-9 * count**2 for count in COUNTS})
    assert square == pytest.approx(dict.fromkeys(MULTIPLES, 1.0))
    picky = penalties({count: 1e-9 * count * (1 if count % 4 == 0 else 3) for count in COUNTS})
    assert picky == pytest.approx({1: 3, 2: 3, 4: 1, 8: 1, 16: 1, 32: 1})


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ((1, 1, 1, 1, 1, 1), 1),
        ((1.04, 1, 1, 1, 1, 1), 1),
        ((1.2, 1, 1, 1, 1, 1), 2),
        ((3, 3, 1, 1, 1, 1), 4),
        ((1.5, 1.5, 1.2, 1.12, 1.0, 1.0), 16),
        ((2, 2, 2, 2, 2, 1), 32),
        ((0.8, 1, 1, 1, 1, 1), 1),
    ],
)
def test_the_smallest_multiple_that_is_nearly_the_best_is_recommended(costs: tuple[float, ...], expected: int) -> None:
    assert recommend(dict(zip(MULTIPLES, costs, strict=True))) == expected


def curve(name: str, ratios: dict[float, float], half_width: float = 0.01) -> FormatCurve:
    points = tuple(SparsityPoint(s, timing(ratio, half_width), timing(1.0, 0.02)) for s, ratio in ratios.items())
    return FormatCurve(name, 1024, 16, points)


@pytest.mark.parametrize(
    ("ratio", "half_width", "held"), [(2.0, 0.1, True), (0.6, 0.1, False), (1.05, 0.1, None), (0.99, 0.01, None)]
)
def test_sparse_slower_than_dense(ratio: float, half_width: float, held: bool | None) -> None:
    fast = curve("CSR, W @ X", {0.9: 0.4})
    block = curve("BSR, block zeros", {0.9: 9.0})  # not unstructured: it proves nothing here
    claim = sparse_can_be_slower([curve(BATCH_FIRST, {0.9: ratio}, half_width), fast, block])
    assert claim.held is held
    assert f"{ratio:.2f} × dense through F.linear and 0.40 × dense as W @ X" in claim.because
    assert "depends on the layout" in claim.because


def test_secateurs_kernels_count_like_any_format_and_their_blocks_do_not() -> None:
    standard, blocks = curve(BATCH_FIRST, {0.9: 0.8}), curve("secateur's, 4×1", {0.9: 0.1})
    quick, slow = curve(KERNELS, {0.9: 0.2}), curve(KERNELS, {0.9: 1.5})
    claim = sparse_can_be_slower([standard, quick, blocks])
    assert claim.held is False
    assert claim.because.endswith("With secateur's kernels it took 0.20 × dense.")
    assert sparse_can_be_slower([standard, quick, slow]).held is True, "the size of a weight may be what decides"
    assert "kernels" not in sparse_can_be_slower([standard, blocks]).because
    refuted = only_tensor_cores([curve(BATCH_FIRST, {0.9: 2.0}), quick, blocks], NO_CORES)
    assert refuted.held is False
    assert "secateur's kernels ran in 0.20 [0.19, 0.21] of the time of dense at 90 % zeros" in refuted.because
    assert only_tensor_cores([curve(BATCH_FIRST, {0.9: 2.0}), slow, blocks], NO_CORES).held is True


def test_only_tensor_cores_is_refuted_by_any_format_that_is_faster_without_them() -> None:
    slow = curve(BATCH_FIRST, {0.5: 9.0, 0.9: 2.0, 0.99: 1.2})
    refuted = only_tensor_cores([slow, curve("CSR, W @ X", {0.5: 2.0, 0.9: 0.4, 0.99: 0.1})], NO_CORES)
    assert refuted.held is False
    assert "CSR, W @ X ran in 0.40 [0.39, 0.41] of the time of dense at 90 % zeros" in refuted.because
    late = only_tensor_cores([curve("CSR, W @ X", {0.9: 1.4, 0.95: 0.8, 0.99: 0.1})], TensorCores(""))
    assert late.held is False
    assert "at 95 % zeros" in late.because
    held = only_tensor_cores([slow, curve("BSR, block zeros", {0.9: 0.1})], NO_CORES)
    assert held.held is True
    assert "up to 99 % zeros" in held.because
    assert only_tensor_cores([curve(BATCH_FIRST, {0.99: 1.0})], NO_CORES).held is None
    assert only_tensor_cores([], NO_CORES).held is None


def layer(one: float, both: float, half_width: float = 0.01) -> LayerCut:
    sides = {"output side": one, "input side": one, "both sides": both}
    return LayerCut("linear", "eager", 256, {k: timing(v, half_width) for k, v in sides.items()}, timing(1.0))


def network(kept: float, macs: float, ratio: float, runtime: str = "eager", half_width: float = 0.01) -> NetworkCut:
    return NetworkCut("net", runtime, f"{kept:.0%}", kept, macs, timing(ratio, half_width), timing(1.0))


def test_half_the_channels_is_judged_for_a_layer_and_for_networks() -> None:
    one, whole = half_the_channels([layer(0.5, 0.25)], [network(0.5, 0.25, 0.27), network(0.75, 0.6, 0.5)])
    assert (one.held, whole.held) == (True, False)
    assert "Without half of its inputs or outputs, a layer takes 0.50 of the time" in one.because
    assert "0.27 of the time, with 0.25 of the MACs" in whole.because
    one, whole = half_the_channels([layer(0.5, 0.3), layer(0.8, 0.5)], [network(0.5, 0.5, 0.55)])
    assert (one.held, whole.held) == (False, True)
    one, whole = half_the_channels([layer(0.6, 0.3, 0.05)], [])
    assert (one.held, whole.held) == (None, None)


def test_linear_speedup_is_judged_by_channels_and_by_multiply_adds() -> None:
    cuts = [network(0.75, 0.56, 0.58), network(0.5, 0.25, 0.28), network(0.25, 0.06, 0.1)]
    channels, macs = linear_speedup(cuts)
    assert (channels.held, macs.held) == (False, True)
    assert "0.50 of the channels and takes 0.28 [0.27, 0.29] of the time" in channels.because
    slow = [*cuts, network(0.25, 0.06, 0.5, "onnxruntime")]
    macs = linear_speedup(slow)[1]
    assert macs.held is False
    assert "in eager: held; in onnxruntime: did not hold" in macs.because
    assert linear_speedup([network(0.5, 0.5, 0.6, half_width=0.02)])[0].held is None
    assert linear_speedup([])[0].held is None


def count_curve(penalty: float, control: float = 1.0) -> CountCurve:
    seconds = [1e-6 * count * (penalty if count % 4 else 1) for count in COUNTS]
    timings = tuple(timing(each / seconds[0], 0.01, each) for each in seconds)
    return CountCurve("depthwise", "onnxruntime", COUNTS, timings, timing(control))


def test_counts_matter_only_where_it_was_quiet_enough_to_tell() -> None:
    held = counts_matter([count_curve(1.0), count_curve(4.0)])
    assert held.held is True
    assert "costs up to 4.00 × as much" in held.because
    assert "not a multiple of 4" in held.because
    assert counts_matter([count_curve(1.0)]).held is False
    assert counts_matter([count_curve(4.0, control=1.3)]).held is True, "far above the noise"
    assert counts_matter([count_curve(1.2, control=1.3)]).held is None
    assert counts_matter([]).held is None


def test_a_verdict_and_a_span_in_words() -> None:
    assert [Claim("", held, "").verdict for held in (True, False, None)] == ["held", "did not hold", "cannot tell"]
    assert span([0.5, 0.461]) == "0.46–0.50"
    assert span([0.501, 0.499]) == "0.50"
    assert span([]) == "–"


def test_planning_asks_for_multiples_and_expected_ratios(report: HardwareReport) -> None:
    report = replace(report, counts=(count_curve(4.0), replace(count_curve(1.0), runtime="eager")))
    assert report.multiple_of("depthwise") == 4
    assert report.multiple_of("depthwise", "eager") == 1
    assert report.expected_ratio("depthwise", 64, 32, "onnxruntime") == pytest.approx(0.5)
    assert report.expected_ratio("depthwise", 64, 63) == pytest.approx(4 * 63 / 64)
    assert report.expected_ratio("depthwise", 64, 63, "eager") == pytest.approx(63 / 64)
    with pytest.raises(UsageError, match="Did you mean 'depthwise'"):
        report.multiple_of("depthwize")
    with pytest.raises(UsageError, match="openvino was not measured"):
        report.multiple_of("depthwise", "openvino")
    with pytest.raises(UsageError, match="of 4 channels cannot be cut to 5"):
        report.expected_ratio("depthwise", 4, 5)
    assert report.not_measured(("eager", "openvino")) == ["openvino"]


def test_a_report_survives_the_way_through_json(report: HardwareReport) -> None:
    text = json.dumps(report.to_json(), allow_nan=False)
    assert HardwareReport.from_json(json.loads(text)) == report
    unknown_load = replace(report, machine=replace(report.machine, load=math.nan))
    again = HardwareReport.from_json(json.loads(json.dumps(unknown_load.to_json(), allow_nan=False)))
    assert math.isnan(again.machine.load)


def test_a_report_is_kept_for_this_machine(report: HardwareReport, cache: Path) -> None:
    assert load_cached() is None, "nothing there is no reason for a warning"
    save_cached(report)
    assert load_cached() == report
    assert load_cached(replace(this_machine(), cpu="another")) is None
    assert hardware_file(this_machine()).parent == cache


def test_the_cache_is_where_the_user_keeps_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SECATEUR_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert hardware_file(this_machine()).parent == tmp_path / "xdg" / "secateur"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert hardware_file(this_machine()).parent == tmp_path / "home" / ".cache" / "secateur"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b"{}", b'{"version": 1}'],
    ids=["empty", "cut off", "a list", "a text", "not text", "no fields", "few fields"],
)
def test_a_damaged_cache_is_ignored_with_a_sentence(content: bytes, cache: Path) -> None:
    cache.mkdir()
    hardware_file(this_machine()).write_bytes(content)
    with pytest.warns(SecateurWarning, match=r"are ignored \(.*`secateur hardware --again` replaces them"):
        assert load_cached() is None


def test_every_stored_field_is_checked(report: HardwareReport) -> None:
    def broken(change: dict[str, object]) -> None:
        with pytest.raises(Damaged):
            HardwareReport.from_json({**report.to_json(), **change})

    broken({"seconds": "long"})
    broken({"version": None})
    broken({"notes": "none"})
    broken({"surprise": 1})
    broken({"machine": {**report.machine.to_json(), "cores": True}})
    (ablation,), (layer, *_) = report.to_json()["ablations"], report.to_json()["layers"]
    broken({"ablations": [{**ablation, "control": None}]})
    broken({"layers": [{**layer, "control": {**layer["control"], "ratio": 0.0}}]})


def test_the_cache_of_another_version_is_ignored(report: HardwareReport, cache: Path) -> None:
    save_cached(replace(report, version="0.0.1"))
    with pytest.warns(SecateurWarning, match=r"secateur 0\.0\.1 wrote it"):
        assert load_cached() is None


def test_a_cache_that_cannot_be_written_does_not_cost_the_measurements(report: HardwareReport, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.warns(SecateurWarning, match="not kept for the next time"):
        save_cached(report)


@pytest.mark.skipif(why_unavailable() is not None, reason="there are no kernels to time")
def test_every_format_is_measured(report: HardwareReport) -> None:
    assert {each.format for each in report.formats} == set(FORMATS)
