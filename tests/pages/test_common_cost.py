"""What runs are compared by: milliseconds, each in its best runtime, or in the one that was asked for."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from secateur.base.errors import UsageError
from secateur.bench.sheet import Measurement, Refusal
from secateur.bench.timing import Timing
from secateur.pages.common_cost import common_cost
from secateur.pages.overlay_page import save_overlay_page
from secateur.pages.run_report import RunReport
from tests.support.report_runs import real_report


def measured(runtime: str, dense: float, pruned: float, batch: int = 1, threads: int = 1) -> Measurement:
    """In milliseconds."""
    ratio = pruned / dense
    timings = {
        "dense": Timing(dense / 1e3, 1, 1, 1, 20, dense / 1e3, dense / 1e3),
        "zeros": Timing(pruned / 1e3, ratio, 0.9 * ratio, 1.1 * ratio, 20, pruned / 1e3, pruned / 1e3),
    }
    item = real_report("zeros").measurements[0]
    return replace(
        item, batch=batch, comparison=replace(item.comparison, runtime=runtime, threads=threads, timings=timings)
    )


def run(metric: float, *items: Measurement, refusals: tuple[Refusal, ...] = ()) -> RunReport:
    report = real_report("zeros")
    assert report.sheet is not None
    sheet = replace(report.sheet, measurements=items, refusals=refusals)
    return replace(report, sheet=sheet, records=(*report.records[:-1], replace(report.records[-1], metric=metric)))


def page(folder: Path, runtime: str | None = None, **reports: RunReport) -> str:
    save_overlay_page(reports, folder / "page.html", {}, runtime)
    return (folder / "page.html").read_text().partition("</script>\n</head>")[2]


def legend(text: str) -> set[str]:
    return set(re.findall(r'"name":"([^"]+)"', text)) - {"frontier", "dense"}


@cache
def fast() -> RunReport:
    return run(0.8, measured("onnxruntime", 1.0, 0.5), measured("eager", 9.0, 7.0))


@cache
def slow() -> RunReport:
    return run(0.9, measured("eager", 9.0, 3.5))


def test_each_run_is_taken_in_its_best_runtime(tmp_path: Path) -> None:
    """In eager, the only runtime of both, the fast one would be beaten: 7 ms and less accurate."""
    found = common_cost({"fast": fast(), "slow": slow()}, None)
    own, other = found.runs["fast"], found.runs["slow"]
    assert (own.runtime, own.latency, own.of_dense) == ("onnxruntime", "0.5 ms", "0.50 [0.45, 0.55]")
    assert (other.runtime, other.latency) == ("eager", "3.5 ms")
    assert [own.low, own.middle, own.high] == pytest.approx([0.45, 0.5, 0.55])
    assert found.dense["fast"].runtime == "onnxruntime"
    assert found.dense["fast"].middle == pytest.approx(1.0)
    text = page(tmp_path, fast=fast(), slow=slow())
    assert "Accuracy against latency, batch 1, each in its best runtime<" in text
    assert "beaten by another" not in legend(text)
    assert '<td class="number">0.5 ms</td>' in text
    assert "<td>onnxruntime</td>" in text


def test_a_runtime_that_is_asked_for_is_that_of_all(tmp_path: Path) -> None:
    text = page(tmp_path, "eager", fast=fast(), slow=slow())
    assert "Accuracy against latency in eager, batch 1<" in text
    assert "each model in eager." in text
    assert '<td class="number">7 ms</td>' in text
    assert "0.5 ms" not in text
    assert legend(text) == {"on the frontier", "beaten by another"}


@pytest.mark.parametrize(
    ("runtime", "sentence"),
    [
        ("onnxruntime", "no latency in onnxruntime of slow; `secateur measure --runtime onnxruntime` adds it"),
        ("eagr", "no latency in eagr of fast, slow; did you mean 'eager'?"),
        ("openvino", "no latency in openvino of fast, slow; `secateur measure --runtime openvino` adds it"),
    ],
)
def test_a_runtime_that_not_all_were_measured_in_is_refused(runtime: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        common_cost({"fast": fast(), "slow": slow()}, runtime)


def test_a_run_is_beaten_only_in_a_runtime_that_it_was_tried_in_as_well(tmp_path: Path) -> None:
    worse = run(0.7, measured("eager", 9.0, 3.0))
    text = page(tmp_path, fast=fast(), worse=worse)
    assert legend(text) == {"on the frontier", "may be faster elsewhere"}
    assert "worse may be faster in onnxruntime, where it was not measured" in text
    tried = run(0.7, *worse.measurements, measured("onnxruntime", 1.0, 0.6))
    refused = run(0.7, *worse.measurements, refusals=(Refusal("onnxruntime", "zeros", None, "zeros does not run."),))
    for known in (tried, refused):
        text = page(tmp_path, fast=fast(), worse=known)
        assert legend(text) == {"on the frontier", "beaten by another"}
        assert "may be faster" not in text


def test_all_latencies_are_in_a_table() -> None:
    assert common_cost({"fast": fast(), "slow": slow()}, None).everywhere == [
        ["", "onnxruntime", "eager"],
        ["dense", "1 ms", "9 ms"],
        ["fast", "0.5 ms", "7 ms"],
        ["slow", "–", "3.5 ms"],
    ]


def test_milliseconds_compare_only_with_one_batch_and_number_of_threads_on_one_machine(tmp_path: Path) -> None:
    item = slow().measurements[0]
    elsewhere = replace(item.comparison, machine=replace(item.comparison.machine, cpu="another"))
    others = {
        "batch": measured("eager", 9.0, 3.5, batch=8),
        "threads": measured("eager", 9.0, 3.5, threads=2),
        "machine": replace(item, comparison=elsewhere),
    }
    for other in others.values():
        reports = {"fast": fast(), "other": run(0.7, other)}
        text = page(tmp_path, **reports)
        assert "Accuracy against MACs<" in text
        assert "have no latency with the same batch and threads on the same machine" in text
        assert "beaten" not in text
        assert " ms</td>" not in text
        with pytest.raises(UsageError, match="In eager the runs were measured with different batches or threads, or"):
            common_cost(reports, "eager")
    both = run(0.7, *others.values(), measured("sparse", 9.0, 3.0))
    assert common_cost({"fast": fast(), "both": both}, None).runs["both"].runtime == "sparse"


def test_dense_models_of_other_sizes_are_points_of_their_own() -> None:
    first = slow().records[0]
    size = replace(first.size, parameters=2 * first.size.parameters, nonzeros=2 * first.size.nonzeros)
    larger = replace(slow(), records=tuple(replace(each, size=size) for each in slow().records))
    assert list(common_cost({"fast": fast(), "slow": slow()}, None).dense) == ["fast"]
    assert list(common_cost({"fast": fast(), "larger": larger}, None).dense) == ["fast", "larger"]


def test_a_comparison_has_its_date_and_those_of_its_runs(tmp_path: Path) -> None:
    earlier = replace(slow(), finished_at=None, versions={"secateur": "0.0.9"})
    text = page(tmp_path, fast=replace(fast(), finished_at="2026-05-17 14:03+02:00"), slow=earlier)
    assert re.search(r"Compared \d{4}-\d\d-\d\d \d\d:\d\d\S+ with secateur \d", text)
    assert "<td>2026-05-17, " in text
    assert "<td>0.0.9</td>" in text
