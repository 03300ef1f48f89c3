"""What the page of a run says, and the data behind it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from datetime import datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

from secateur import __version__
from secateur.base.errors import SecateurError, SecateurWarning, UsageError
from secateur.base.records import to_json
from secateur.bench.sheet import Refusal, Sheet
from secateur.bench.timing import Timing
from secateur.commands.report import report as report_command
from secateur.pages.gather import report_of, with_sheet
from secateur.pages.overlay_page import frontier, save_overlay_page
from secateur.pages.run_charts import latency_chart
from secateur.pages.run_page import save_run_page
from secateur.pages.run_report import RunReport, load_report, save_report
from tests.support.report_runs import EVIL, evil_report, evil_sheet, pruned, real_report, sheet, trained

RUNS = ("channels", "zeros")


def page_of(report: RunReport, folder: Path) -> str:
    """What a reader sees: the page without the library that draws its charts."""
    save_run_page(report, folder / "page.html")
    return without_plotly((folder / "page.html").read_text())


def without_plotly(page: str) -> str:
    head, _, rest = page.partition("<script>")
    return head + rest.partition("</script>\n</head>")[2]


@pytest.mark.parametrize("name", RUNS)
def test_a_report_comes_back_from_json_as_it_was(name: str, tmp_path: Path) -> None:
    report = real_report(name)
    save_report(report, tmp_path)
    assert repr(load_report(tmp_path)) == repr(report), "repr, because NaN is not equal to itself"
    bare = report_of(pruned(name), name)
    assert repr(RunReport.from_json(json.loads(json.dumps(to_json(bare))))) == repr(bare)


def test_the_layers_are_those_of_the_model_before_and_after() -> None:
    layers = real_report("channels").layers
    before, after = trained().model, pruned("channels").model
    for name, module in before.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            assert layers[name] == (after.get_submodule(name).weight.shape[0], module.weight.shape[0])
    assert real_report("zeros").layers["stem"][0] == int(pruned("zeros").model.stem.weight.count_nonzero())


def test_the_sheets_own_name_of_the_model_counts() -> None:
    measured = sheet("eager")
    report = real_report("zeros")
    item = report.measurements[1]
    assert item.batch == 8
    assert list(item.comparison.timings) == ["dense", report.measured_name] == ["dense", "zeros"]
    assert item.comparison["zeros"] == measured.measurements[1].comparison["zeros"]
    assert item.comparison.control == measured.measurements[1].comparison.control
    assert report.macs == (measured.footprints["dense"].macs,) * 2
    with pytest.raises(UsageError, match="The sheet measures channels, zeros; give the name"):
        with_sheet(replace(report, name="my run"), measured)


def in_runtime(measured: Sheet, runtime: str, batch: int = 1, threads: int = 1) -> Sheet:
    """As if its first measurement had been made there."""
    first = measured.measurements[0]
    comparison = replace(first.comparison, runtime=runtime, threads=threads)
    return replace(measured, measurements=(replace(first, batch=batch, comparison=comparison),))


def conditions(report: RunReport) -> list[tuple[str, int, int]]:
    return [(item.comparison.runtime, item.batch, item.comparison.threads) for item in report.measurements]


def test_a_second_sheet_is_added_to_the_first() -> None:
    measured = sheet("eager")
    report = with_sheet(report_of(pruned("zeros"), "zeros"), in_runtime(measured, "onnxruntime"))
    for place in (("sparse", 1, 1), ("onnxruntime", 8, 1), ("onnxruntime", 1, 2)):
        report = with_sheet(report, in_runtime(measured, *place))
    assert conditions(report) == [
        ("onnxruntime", 1, 1),
        ("sparse", 1, 1),
        ("onnxruntime", 8, 1),
        ("onnxruntime", 1, 2),
    ]
    slower = in_runtime(measured, "sparse")
    (item,) = slower.measurements
    timings = {**item.comparison.timings, "zeros": Timing(9, 9, 9, 9, 20, 9, 9)}
    slower = replace(slower, measurements=(replace(item, comparison=replace(item.comparison, timings=timings)),))
    again = with_sheet(report, slower)
    assert conditions(again) == conditions(report)
    assert again.measurements[1].comparison["zeros"].seconds == 9, "the same place, measured anew"
    assert again.measurements[0] == report.measurements[0]


def test_a_second_sheet_may_call_the_models_otherwise() -> None:
    renamed = evil_sheet(real_report("zeros").sheet)
    report = with_sheet(replace(real_report("zeros"), name=EVIL), renamed)
    assert conditions(report) == [("eager", 1, 1), ("eager", 8, 1), (EVIL, 1, 1), (EVIL, 8, 1)]
    assert all(list(item.comparison.timings) == list(renamed.footprints) for item in report.measurements)
    save = RunReport.from_json(json.loads(json.dumps(to_json(report))))
    assert conditions(save) == conditions(report)


def test_what_could_not_be_measured_is_forgotten_when_it_is_tried_again() -> None:
    measured = sheet("eager")
    refusals = tuple(Refusal(runtime, "zeros", None, "zeros does not run.") for runtime in ("openvino", "sparse"))
    refused = replace(in_runtime(measured, "eager"), refusals=refusals)
    report = with_sheet(report_of(pruned("zeros"), "zeros"), refused)
    assert with_sheet(report, in_runtime(measured, "sparse")).refusals == refusals[:1]
    assert with_sheet(report, replace(refused, refusals=refusals[:1])).refusals == (refusals[1], refusals[0])


def test_latencies_of_other_inputs_are_not_kept_beside_new_ones() -> None:
    report, measured = real_report("zeros"), in_runtime(sheet("eager"), "sparse")
    larger = {name: replace(footprint, macs=4 * footprint.macs) for name, footprint in measured.footprints.items()}
    with pytest.warns(SecateurWarning, match="latencies that zeros had are dropped: they are of other example inputs"):
        assert conditions(with_sheet(report, replace(measured, footprints=larger))) == [("sparse", 1, 1)]


def test_the_headline_is_in_the_runtime_that_the_run_was_pruned_for(tmp_path: Path) -> None:
    measured = sheet("eager")
    report = replace(report_of(pruned("zeros"), "zeros"), settings={"runtime": "onnxruntime", "threads": "2"})
    assert report.headline is None
    for place in (("sparse", 1, 2), ("onnxruntime", 1, 1), ("onnxruntime", 1, 2)):
        report = with_sheet(report, in_runtime(measured, *place))
    assert report.headline is report.measurements[2]
    assert "<p>onnxruntime, float32, batch 1, 2 threads; 95 % intervals.</p>" in page_of(report, tmp_path)
    labels = latency_chart(report).layout.yaxis.ticktext
    assert labels == ("onnxruntime, batch 1, 2 threads", "onnxruntime, batch 1", "sparse, batch 1, 2 threads")
    assert replace(report, settings={}).headline is report.measurements[0]
    assert replace(report, settings={"runtime": "openvino"}).headline is report.measurements[0]


def test_a_page_has_the_date_of_its_run_and_the_version(tmp_path: Path) -> None:
    report = real_report("zeros")
    moment = datetime.fromisoformat(str(pruned("zeros").finished_at))
    assert abs(datetime.now().astimezone() - moment) < timedelta(hours=1)
    line = f"<p>Finished {report.finished_at} with secateur {__version__}</p>".replace("<p>", '<p class="quiet">')
    assert line.replace("+", "&#43;") in page_of(report, tmp_path).replace("+", "&#43;")
    earlier = page_of(replace(report, finished_at=None, versions={"secateur": "0.1.0"}), tmp_path)
    assert '<p class="quiet">Made with secateur 0.1.0</p>' in earlier


def damaged(stored: dict[str, Any]) -> list[tuple[str, Any]]:
    def without(key: str) -> Any:
        return {name: value for name, value in stored.items() if name != key}

    def measured(**changes: Any) -> Any:
        return {**stored, "sheet": {**stored["sheet"], **changes}}

    group, histogram, first = stored["groups"][0], stored["histogram"], stored["sheet"]["measurements"][0]
    no_time = {name: {**timing, "median": 0} for name, timing in first["comparison"]["timings"].items()}
    only_dense = {"dense": stored["sheet"]["footprints"]["dense"]}
    return [
        ("not a report of a run", []),
        ("not a report of a run", {**stored, "format": "secateur-plan"}),
        ("version 3", {**stored, "version": 3}),
        ("is damaged", {**stored, "version": 1}),
        ("is damaged", without("cut")),
        ("is damaged", {**stored, "surprise": 1}),
        ("is damaged", {**stored, "name": None}),
        ("no stop before the cut", {**stored, "records": []}),
        ("is damaged", {**stored, "records": [{**stored["records"][0], "metric": "high"}]}),
        ("an accuracy that is no share", {**stored, "records": [{**stored["records"][0], "metric": 1.5}]}),
        ("an accuracy that is no share", {**stored, "records": [{**stored["records"][0], "counted": -1}]}),
        ("more left than there was", {**stored, "groups": [{**group, "after": group["before"] + 1}]}),
        ("more left than there was", {**stored, "groups": [{**group, "before": 0, "after": 0}]}),
        ("more left than there was", {**stored, "layers": {"x": [4, 3]}}),
        ("-1 is negative", {**stored, "layers": {"x": [-1, 3]}}),
        ("3 items stand where 2 belong", {**stored, "layers": {"x": [1, 2, 3]}}),
        ("1 items stand where 2 belong", {**stored, "planned_macs": [1]}),
        ("a histogram without bins", {**stored, "histogram": {**histogram, "kept": [1]}}),
        ("a histogram without bins", {**stored, "histogram": {**histogram, "edges": [0, math.inf] * 40 + [math.inf]}}),
        ("a histogram without bins", {**stored, "histogram": {**histogram, "edges": [1.0] * 81}}),
        ("is damaged", measured(measurements=[{"runtime": "eager"}])),
        ("a sheet of other models", measured(footprints=only_dense)),
        ("a sheet of other models", measured(measurements=[{**first, "peak_megabytes": {}}])),
        (
            "takes no time",
            measured(measurements=[{**first, "comparison": {**first["comparison"], "timings": no_time}}]),
        ),
        ("is damaged", {**stored, "machine": {**stored["machine"], "cores": "two"}}),
    ]


def test_damaged_reports_are_refused_in_one_sentence(tmp_path: Path) -> None:
    for sentence, stored in damaged(to_json(real_report("channels"))):
        (tmp_path / "report.json").write_text(json.dumps(stored))
        with pytest.raises(SecateurError, match=sentence) as caught:
            load_report(tmp_path)
        assert "\n" not in str(caught.value)
    for text in ("", "{", "[" * 100_000, "\x00\xff"):
        (tmp_path / "report.json").write_text(text)
        with pytest.raises(SecateurError, match="cannot be read"):
            load_report(tmp_path)


@pytest.mark.parametrize("name", RUNS)
def test_the_page_is_one_file_with_the_numbers_of_the_run(name: str, tmp_path: Path) -> None:
    report, result = real_report(name), pruned(name)
    page = page_of(report, tmp_path)
    assert not re.search(r'<(script|link|img|iframe)[^>]+(src|href)="', page)
    assert result.verdict.replace('"', "&#34;").replace("'", "&#39;") in page
    assert f"{result.before:.1%} → " in page
    assert f"{result.after:.1%}</b>" in page
    assert f"{result.size_before.parameters:,} → {result.size_after.parameters:,} parameters" in page
    comparison = report.measurements[0].comparison
    assert str(comparison[name]) in page
    assert str(comparison.control) in page
    assert comparison.machine.cpu in page
    assert "from blobs import model" in page
    assert f"secateur.load(&#34;{name}&#34;, model)" in page
    assert page.count('class="chart"') == 4
    assert page.count('class="chart"') == page.count('role="figure" aria-label="')
    assert 'lang="en"' in page


def test_losing_too_much_is_said_plainly(tmp_path: Path) -> None:
    last = replace(real_report("zeros").records[-1], metric=0.5)
    report = replace(real_report("zeros"), records=(*real_report("zeros").records[:-1], last))
    page = page_of(report, tmp_path)
    assert "50 points lost: did NOT recover, 2 points are allowed." in page
    assert 'class="verdict failed"' in page


def test_another_metric_has_no_points(tmp_path: Path) -> None:
    report = replace(real_report("zeros"), metric_name="f1 <score>", settings={})
    page = page_of(report, tmp_path)
    assert " points" not in page
    assert "F1 &lt;score&gt; through train" in page
    assert "from my_task import model" in page


@pytest.mark.parametrize("name", RUNS)
def test_what_is_missing_names_the_command_that_adds_it(name: str, tmp_path: Path) -> None:
    page = page_of(report_of(replace(pruned(name), histogram=None), name), tmp_path)
    assert f"`secateur measure {name}` adds it" in page
    assert "`secateur prune` counts them" in page
    assert page.count('class="chart"') == 2


def test_a_command_on_the_page_can_be_pasted(tmp_path: Path) -> None:
    page = page_of(report_of(pruned("zeros"), "a b"), tmp_path)
    assert "`secateur measure &#39;a b&#39;` adds it" in page


def test_a_run_that_only_trained_has_a_page_as_well(tmp_path: Path) -> None:
    page = page_of(report_of(trained(), "dense"), tmp_path)
    assert "Trained; nothing was pruned." in page
    assert page.count('class="chart"') == 1


class Elements(HTMLParser):
    """The tags of a page, and the handlers that would run."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, value in attrs if name.startswith("on") or "javascript:" in (value or "")]


def test_names_are_text_whatever_they_contain(tmp_path: Path) -> None:
    honest = real_report("channels")
    changed = evil_report(honest)
    assert honest.sheet is not None
    machine = replace(honest.sheet.machine, cpu="another")
    items = tuple(
        replace(i, comparison=replace(i.comparison, notes={"a": "b"}, machine=machine)) for i in honest.measurements
    )
    harmless_sheet = replace(honest.sheet, measurements=items, refusals=(Refusal("a", "b", None, "c"),))
    harmless = replace(honest, sheet=harmless_sheet, settings={"a": "b", "task": "c"})
    harmless = replace(harmless, versions={"a": "b", "secateur": "c"})
    expected = Elements(page_of(harmless, tmp_path))
    page = page_of(changed, tmp_path)
    found = Elements(page)
    assert [tag for tag in found.tags if tag != "path"] == [tag for tag in expected.tags if tag != "path"]
    assert found.handlers == []
    assert "<script>window" not in page
    assert "<img" not in page
    save_overlay_page({EVIL: changed}, tmp_path / "overlay.html", {EVIL: "x.html"})
    assert "ran = 1</script>" not in without_plotly((tmp_path / "overlay.html").read_text())


COORDINATE = st.integers(0, 4).map(lambda n: n / 4)


@given(st.lists(st.tuples(COORDINATE, COORDINATE), max_size=12))
def test_the_frontier_is_what_no_other_beats(points: list[tuple[float, float]]) -> None:
    def beaten(mine: tuple[float, float]) -> bool:
        return any(cost <= mine[0] and metric >= mine[1] and (cost, metric) != mine for cost, metric in points)

    found = frontier(points)
    assert sorted(found) == [i for i, point in enumerate(points) if not beaten(point)]
    assert [points[i] for i in found] == sorted(points[i] for i in found)


def overlay(reports: dict[str, RunReport], folder: Path, runtime: str | None = None) -> str:
    save_overlay_page(reports, folder / "o.html", {name: f"{name}/report.html" for name in reports}, runtime)
    return without_plotly((folder / "o.html").read_text())


def test_runs_are_compared_by_what_all_of_them_have(tmp_path: Path) -> None:
    channels, zeros = (real_report(name) for name in RUNS)
    assert "Accuracy against latency in eager, batch 1<" in overlay({"c": channels, "z": zeros}, tmp_path)
    assert zeros.sheet is not None
    assert "each model in eager" in overlay({"c": channels, "z": zeros}, tmp_path, "eager")
    only_large_batches = replace(zeros, sheet=replace(zeros.sheet, measurements=zeros.measurements[1:]))
    assert "against latency in eager, batch 8<" in overlay({"c": channels, "z": only_large_batches}, tmp_path)
    unmeasured = report_of(pruned("zeros"), "zeros")
    page = overlay({"c": channels, "z": unmeasured}, tmp_path)
    assert "Accuracy against MACs<" in page
    assert '<a href="z/report.html">z</a>' in page
    assert '<td class="number">1.00</td>' in page, "zeros leave the MACs as they were"
    uncounted = replace(channels, planned_macs=None, sheet=None)
    assert "Accuracy against parameters<" in overlay({"c": uncounted, "z": unmeasured}, tmp_path)
    with pytest.raises(UsageError, match=r"different metrics \(accuracy, f1\)"):
        overlay({"c": channels, "z": replace(zeros, metric_name="f1")}, tmp_path)


def run(*arguments: object) -> tuple[int, str, str]:
    app = typer.Typer()
    app.command()(report_command)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in RUNS:
        save_report(real_report(name), tmp_path / "my runs" / name)
    return tmp_path / "my runs"


def test_one_run_gets_its_page_beside_it(runs: Path) -> None:
    assert run(runs / "zeros") == (0, f"The page is {runs / 'zeros' / 'report.html'}.\n", "")
    assert "weights set to zero" in (runs / "zeros" / "report.html").read_text()
    assert run(runs / "zeros", "-o", runs / "other.html")[0] == 0
    assert (runs / "other.html").exists()


def test_several_runs_are_laid_over_one_another(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.parent)
    assert run(runs / "zeros", runs / "channels") == (0, "The page is report.html.\n", "")
    page = without_plotly((runs.parent / "report.html").read_text())
    links = re.findall(r'<a href="([^"#]+)"', page)
    assert links == ["my%20runs/zeros/report.html", "my%20runs/channels/report.html"]
    assert all((runs.parent / link.replace("%20", " ")).exists() for link in links)


def test_errors_are_one_sentence(runs: Path) -> None:
    code, _, error = run(runs / "zero")
    assert code == 2
    assert error == f"secateur: There is no report of a run in {runs / 'zero'}; did you mean {runs / 'zeros'}?\n"
    assert run(runs)[2].endswith("give a folder that `secateur prune` wrote.\n")
    (runs / "zeros" / "report.json").write_text("{}")
    code, _, error = run(runs / "zeros", runs / "channels")
    assert code == 1
    assert error.count("\n") == 1
    assert "This is not a report of a run" in error
    assert not (runs / "channels" / "report.html").exists()
