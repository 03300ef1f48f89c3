"""The page of a sweep: whether it is complete, what each version kept and costs, and which no other beats."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import secateur
from secateur.base.errors import SecateurError, UsageError
from secateur.examples.small_resnet import SmallResNet
from secateur.pages.page import PLOTLY_FILE
from secateur.pages.report_writing import report_sweep
from secateur.pages.run_report import load_report
from secateur.pages.sweep_chart import sweep_chart, view_by
from secateur.pages.sweep_page import save_sweep_page
from secateur.pages.sweep_points import axes_of, points_of
from secateur.studies.sweep.swept import Sweep
from tests.support.report_runs import EVIL, loaders
from tests.support.sweeps import ANOTHER_MACHINE, made_up_sweep, sheet_of, swept_run, with_failures


def seen(page: Path) -> str:
    """Without the library that draws the charts."""
    head, _, rest = page.read_text(encoding="utf-8").partition("<script>")
    return head + rest.partition("</script>\n</head>")[2]


def page_of(found: Sweep) -> str:
    save_sweep_page(found, found.folder / "page.html")
    return seen(found.folder / "page.html")


def row(page: str, name: str) -> list[str]:
    """The texts of the first row that begins with the name."""
    rows = (re.findall(r"<td[^>]*>(.*?)</td>", each, re.DOTALL) for each in page.split("<tr")[1:])
    texts = ([" ".join(re.sub("<[^>]+>", " ", cell).split()) for cell in cells] for cells in rows if cells)
    return next(cells for cells in texts if cells[0] == name)


def costs_offered(page: str) -> list[str]:
    return re.findall(r'<input type="radio".*?> (.*?)</label>', page)


def two_versions(folder: Path, **more: Any) -> Sweep:
    """The smaller one is better with one seed and worse with the other."""
    found = made_up_sweep(folder, 1, 1)
    runs = (
        swept_run("small", 0, 0.25, 0.80),
        swept_run("small", 1, 0.25, 0.90),
        swept_run("large", 0, 0.5, 0.88),
    )
    return replace(found, runs=runs, sheets=(sheet_of(runs),), **more)


def test_a_complete_sweep_says_so_and_what_each_version_is_worth(tmp_path: Path) -> None:
    page = page_of(two_versions(tmp_path))
    assert '<p class="verdict">Complete: 3 runs.</p>' in page
    assert row(page, "small") == [
        *("small", "2", "85.0%", "80.0%–90.0%"),
        *("2.5 ms", "0.25 [0.24, 0.26]", "125 M", "2.5 M", "2.5 M", "10 MB"),
        "all costs",
    ]
    assert row(page, "dense")[:6] == ["dense", "", "93.0%", "", "10 ms", "1"]
    assert row(page, "small-seed-1")[:5] == ["small-seed-1", "small", "1", "90.0%", "2.5 ms"]
    assert "onnxruntime, float32, batch 1, one thread, on CPU A · 8 cores" in page
    assert costs_offered(page) == ["latency", "file size", "MACs", "parameters"]


def test_a_version_that_is_dearer_and_no_better_is_off_the_frontier(tmp_path: Path) -> None:
    found = two_versions(tmp_path)
    beaten = replace(found, runs=(*found.runs[:2], swept_run("large", 0, 0.5, 0.84)))
    assert row(page_of(found), "large")[-1] == "all costs"
    assert row(page_of(beaten), "large")[-1] == "", "its one seed is worse than the mean of the others"
    assert row(page_of(beaten), "dense")[-1] == "all costs"


def test_the_frontier_follows_the_cost(tmp_path: Path) -> None:
    """A version may have fewer parameters than another, and take longer."""
    found = two_versions(tmp_path)
    slow = replace(found.runs[2], file_bytes=1_000)
    page = page_of(replace(found, runs=(*found.runs[:2], slow), sheets=(sheet_of(found.runs),)))
    assert row(page, "large")[-1] == "all costs"
    assert row(page, "small")[-1] == "latency, MACs, parameters"


def test_means_spreads_and_single_seeds_are_drawn(tmp_path: Path) -> None:
    points = points_of(two_versions(tmp_path), {"small-seed-1": "there.html"})
    (latency, *_) = axes_of(points, machines=1)
    figure = sweep_chart(view_by(latency, points), points, "accuracy")
    frontier, seeds, versions, dense = figure.data
    assert list(seeds.y) == [0.80, 0.90, 0.88]
    assert list(versions.x) == [2.5, 5.0]
    assert list(versions.y) == pytest.approx([0.85, 0.88])
    assert list(versions.error_y.array) == pytest.approx([0.05, 0])
    assert list(versions.error_y.arrayminus) == pytest.approx([0.05, 0])
    assert list(versions.customdata) == ["there.html", None], "a version leads to its best seed"
    assert "seeds 0, 1<br>accuracy 85.0%, from 80.0% to 90.0%<br>2.5 ms" in versions.hovertext[0]
    assert list(frontier.x) == [2.5, 5.0, 10.0]
    assert (list(dense.x), list(dense.y)) == ([10.0], [0.93])
    assert list(versions.text) == ["small", "large"]


def test_no_label_is_cut_by_the_edge_of_the_chart(tmp_path: Path) -> None:
    found = two_versions(tmp_path)
    runs = (found.runs[0], swept_run("slow", 0, 0.95, 0.88))
    points = points_of(replace(found, runs=runs, sheets=(sheet_of(runs),)), {})
    (latency, *_) = axes_of(points, machines=1)
    versions = next(trace for trace in sweep_chart(view_by(latency, points), points, "accuracy").data if trace.text)
    assert dict(zip(versions.text, versions.textposition, strict=True)) == {
        "small": "bottom right",
        "slow": "bottom left",
    }


def test_one_seed_is_drawn_once_and_many_versions_have_no_labels(tmp_path: Path) -> None:
    points = points_of(made_up_sweep(tmp_path, versions=26, seeds=1), {})
    figure = sweep_chart(view_by(axes_of(points, 1)[0], points), points, "accuracy")
    assert [trace.name for trace in figure.data] == ["frontier", "version", "dense"]
    assert figure.data[1].text is None


def test_what_is_missing_has_a_row_with_the_reason_and_the_log(tmp_path: Path) -> None:
    found = with_failures(made_up_sweep(tmp_path), "The loss is <b>infinite</b>; lower the rate.", "")
    failed, not_run = found.missing
    (tmp_path / failed.name).mkdir()
    (tmp_path / failed.name / "log.txt").write_text("epoch 1")
    page = page_of(found)
    assert f'<p class="verdict failed">INCOMPLETE: 2 of 18 runs missing ({failed.name}, {not_run.name}).</p>' in page
    assert page.count('<tr class="failed">') == 2
    assert "The loss is &lt;b&gt;infinite&lt;/b&gt;; lower the rate." in page
    assert '<a href="channels%3D0.95-seed-1/log.txt">log</a>' in page
    assert row(page, f"{failed.name} failed")[-1].endswith("lower the rate. log")
    assert row(page, f"{not_run.name} not run")[-1] == ""


def test_a_sweep_without_a_finished_run_has_a_page(tmp_path: Path) -> None:
    page = page_of(with_failures(made_up_sweep(tmp_path, 1, 2), "It failed.", "It failed, too."))
    assert "No run has finished" in page
    assert "plotly-graph-div" not in page
    assert page.count('<tr class="failed">') == 2


def test_without_latencies_it_says_how_to_get_them(tmp_path: Path) -> None:
    page = page_of(replace(made_up_sweep(tmp_path), sheets=()))
    assert "The latency was not measured; `secateur sweep` measures it without `--no-measure`." in page
    assert costs_offered(page) == ["file size", "MACs", "parameters"]
    assert row(page, "dense")[4:7] == ["–", "–", "–"], "nobody has counted the dense model's MACs either"


def test_a_cost_that_some_versions_lack_is_not_drawn(tmp_path: Path) -> None:
    found = two_versions(tmp_path)
    page = page_of(replace(found, sheets=(sheet_of(found.runs[:2]),)))
    assert costs_offered(page) == ["file size", "MACs", "parameters"]
    assert "The latency is not drawn, because some versions have none: large." in page


def test_latencies_of_several_machines_are_relative_to_the_dense_model(tmp_path: Path) -> None:
    found = two_versions(tmp_path)
    first, *others = found.runs
    found = replace(found, sheets=(sheet_of([first]), sheet_of(others, ANOTHER_MACHINE, seconds=1)))
    page = page_of(found)
    assert "milliseconds do not compare" in page
    assert "<li>CPU B · 8 cores" in page
    assert row(page, "small")[4:6] == ["–", "0.25 [0.24, 0.26]"], "no mean over machines"
    assert row(page, "small")[-2] == "1, 2"
    assert row(page, "large-seed-0")[4:6] == ["500 ms", "0.50 [0.49, 0.52]"]
    assert row(page, "large-seed-0")[-1] == "2"
    assert '"xaxis.title.text": "latency, \\u00d7 dense"' in page


@pytest.mark.parametrize(
    ("stored", "told"), [("3", "3"), ('"one-shot"', "one-shot"), ("null", "–"), ("by hand", "by hand")]
)
def test_what_all_runs_share_is_told(tmp_path: Path, stored: str, told: str) -> None:
    assert row(page_of(two_versions(tmp_path, settings={"schedule": stored})), "schedule") == ["schedule", told]


def test_a_hostile_name_stays_a_name(tmp_path: Path) -> None:
    found = with_failures(made_up_sweep(tmp_path / EVIL.replace("/", "")), EVIL)
    runs = tuple(replace(run, name=EVIL + run.name, version=EVIL + run.version) for run in found.runs)
    tmp_path.joinpath(EVIL.replace("/", "")).mkdir()
    page = page_of(replace(found, metric=EVIL, runs=runs, sheets=(), settings={EVIL: EVIL}))
    assert "<script>window.ran" not in page
    assert "<img" not in page


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    secateur.prune(SmallResNet((8, 16), classes=4), channels=0.5, repair=0, finetune=0, run_dir=folder, **loaders())
    return folder


def with_runs(folder: Path, run_folder: Path) -> Sweep:
    found = made_up_sweep(folder, 2, 1)
    for run in found.runs:
        shutil.copytree(run_folder, folder / run.name)
    return found


def test_the_runs_of_a_sweep_have_pages_that_share_one_library(tmp_path: Path, run_folder: Path) -> None:
    found = with_runs(tmp_path, run_folder)
    first = found.runs[0].name
    page = report_sweep(found, lambda run: {"seed": 3, "out": run.name})
    assert page == tmp_path / "report.html"
    assert f'<a href="{first.replace("=", "%3D")}/report.html">' in seen(page)
    own = (tmp_path / first / "report.html").read_text()
    assert '<script src="../plotly.min.js"></script>' in own
    assert len(own) < 200_000 < (tmp_path / PLOTLY_FILE).stat().st_size
    assert load_report(tmp_path / first).settings == {"seed": "3", "out": first}
    assert found.timing(first) == load_report(tmp_path / first).measurements[0].comparison[first]


def test_the_folder_of_a_sweep_is_enough(tmp_path: Path, run_folder: Path) -> None:
    found = with_runs(tmp_path, run_folder)
    report_sweep(found, lambda run: {"seed": 3})
    found.save()
    (tmp_path / "report.html").unlink()
    assert secateur.report(str(tmp_path)) == tmp_path / "report.html"
    assert "Complete: 2 runs." in seen(tmp_path / "report.html")
    assert load_report(tmp_path / found.runs[0].name).settings == {"seed": "3"}, "they are kept"
    own = secateur.report(tmp_path / found.runs[0].name)
    assert "plotly.min.js" not in seen(own), "the page of a run alone needs no other file"


def test_the_page_of_a_sweep_lies_where_it_is_told_to(tmp_path: Path) -> None:
    found = made_up_sweep(tmp_path)
    assert secateur.report(found, out=tmp_path / "here.html") == tmp_path / "here.html"
    assert "<a href" not in seen(tmp_path / "here.html").partition("<h1>")[2], "the folders of the runs are gone"


def test_a_sweep_takes_no_name_and_no_sheet_and_no_company(tmp_path: Path) -> None:
    found = made_up_sweep(tmp_path)
    found.save()
    with pytest.raises(UsageError, match="belong to runs"):
        secateur.report(tmp_path, name="mine")
    with pytest.raises(UsageError, match="Give folders of runs, or one sweep"):
        secateur.report(tmp_path, tmp_path / "run")


def test_nothing_is_written_outside_the_folder_of_a_sweep(tmp_path: Path, run_folder: Path) -> None:
    found = with_runs(tmp_path / "elsewhere", run_folder)
    outside = f"../elsewhere/{found.runs[0].name}"
    (tmp_path / "sweep").mkdir()
    hostile = replace(found, runs=(replace(found.runs[0], name=outside),), sheets=(), folder=tmp_path / "sweep")
    with pytest.raises(SecateurError, match="outside its folder"):
        report_sweep(hostile)
    assert not (found.folder / found.runs[0].name / "report.html").exists()


def test_the_views_of_the_chart_are_json(tmp_path: Path) -> None:
    views = re.findall(r"data-view='(.*?)'", page_of(made_up_sweep(tmp_path)))
    assert [json.loads(view)["layout"]["xaxis.title.text"] for view in views] == [
        *("latency, ms", "file size", "MACs of one example", "parameters")
    ]
