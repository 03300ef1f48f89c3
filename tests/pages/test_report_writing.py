"""`secateur.report`: pages of run folders, of what Python returned, and of what an earlier version wrote."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import secateur
from secateur.base.errors import SecateurError, UsageError
from secateur.channels.sensitivity_curves import Sensitivity
from secateur.examples.small_resnet import SmallResNet
from secateur.pages.report_writing import report_pruned
from secateur.pages.run_report import load_report
from tests.support.report_runs import EXAMPLE, loaders, pruned, sheet

EARLIER = Path(__file__).parent.parent / "earlier_files"


def network() -> SmallResNet:
    return SmallResNet((8, 16), classes=4)


def seen(page: Path) -> str:
    """Without the library that draws the charts."""
    head, _, rest = page.read_text(encoding="utf-8").partition("<script>")
    return head + rest.partition("</script>\n</head>")[2]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that Python alone has made: without a report."""
    folder = tmp_path_factory.mktemp("runs")
    model = network()
    options: Mapping[str, dict[str, Any]] = {"channels": {"channels": 0.5}, "zeros": {"amount": 0.8}}
    for name, how in options.items():
        secateur.prune(model, repair=0, finetune=1, run_dir=folder / name, **how, **loaders())
    return {name: folder / name for name in options}


@pytest.fixture
def runs(folders: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    return {name: Path(shutil.copytree(folder, tmp_path / name)) for name, folder in folders.items()}


def test_a_result_has_a_page(tmp_path: Path) -> None:
    page = secateur.report(pruned("zeros"), sheet=sheet("eager"), name="zeros", out=tmp_path / "page.html")
    assert page == tmp_path / "page.html"
    assert pruned("zeros").verdict.replace("'", "&#39;").replace('"', "&#34;") in seen(page)
    assert str(sheet("eager").measurements[0].comparison["zeros"]) in seen(page)


def test_the_default_page_of_a_result_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert secateur.report(pruned("channels")) == Path("report.html")
    assert "<h1>pruned</h1>" in seen(tmp_path / "report.html")


@pytest.mark.parametrize("name", ["channels", "zeros"])
def test_the_folder_of_a_run_is_enough(name: str, runs: dict[str, Path]) -> None:
    page = secateur.report(str(runs[name]))
    assert page == runs[name] / "report.html"
    text = seen(page)
    result = secateur.load(runs[name], network)
    left = result.stem.weight.shape[0] if name == "channels" else int(result.stem.weight.count_nonzero())
    total = 8 if name == "channels" else 72
    row = f'<td>stem</td><td class="number">{left}</td><td class="number">{total}</td>'
    assert row in text
    assert f"`secateur measure {name}` adds it" in text
    assert f"<td>secateur</td><td>{secateur.__version__}</td>" in text
    assert not (runs[name] / "report.json").exists(), "what the checkpoint holds is not written twice"


def test_the_folder_keeps_the_sheet(runs: dict[str, Path]) -> None:
    model = secateur.load(runs["zeros"], network)
    dense = network()
    measured = secateur.measure({"dense": dense, "zeros": model}, EXAMPLE, max_seconds=0.1, progress=False)
    secateur.report(runs["zeros"], sheet=measured)
    kept = load_report(runs["zeros"])
    assert repr(kept.sheet) == repr(measured), "repr, because NaN is not equal to itself"
    assert str(measured.measurements[0].comparison["zeros"]) in seen(secateur.report(runs["zeros"]))


def test_several_folders_share_a_page(runs: dict[str, Path], tmp_path: Path) -> None:
    page = secateur.report(*runs.values(), out=tmp_path / "compared.html")
    assert re.findall(r'<a href="([^"#]+)"', seen(page)) == ["channels/report.html", "zeros/report.html"]
    assert all((folder / "report.html").exists() for folder in runs.values())
    assert "Accuracy against MACs<" in seen(page)


def test_runs_of_a_read_only_disk_are_compared_and_linked_where_they_have_a_page(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder = tempfile.mkdtemp

    def read_only(suffix: str, prefix: str, place: Path) -> str:
        if place != tmp_path:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return make_folder(suffix, prefix, place)

    (runs["zeros"] / "report.html").touch()
    monkeypatch.setattr(tempfile, "mkdtemp", read_only)
    page = seen(secateur.report(*runs.values(), out=tmp_path / "compared.html"))
    assert re.findall(r'<a href="([^"#]+)"', page) == ["zeros/report.html"]
    assert "<td>channels</td>" in page


def test_a_run_that_is_started_again_keeps_the_latencies_that_were_added(runs: dict[str, Path]) -> None:
    models = {"dense": network(), "zeros": secateur.load(runs["zeros"], network)}
    report_pruned(runs["zeros"], "zeros", {}, None)
    secateur.report(runs["zeros"], sheet=secateur.measure(models, EXAMPLE, max_seconds=0.1, progress=False))
    report_pruned(runs["zeros"], "zeros", {}, None)
    assert len(load_report(runs["zeros"]).measurements) == 1
    shutil.copy(runs["zeros"] / "report.json", runs["channels"])
    report_pruned(runs["channels"], "channels", {}, None)
    assert not load_report(runs["channels"]).measurements, "another run's are not its own"


def test_a_page_made_from_a_checkpoint_has_the_date_of_the_run(runs: dict[str, Path]) -> None:
    told = secateur.read_checkpoint(runs["zeros"]).metrics["finished_at"]
    assert f"Finished {told} with secateur {secateur.__version__}" in seen(secateur.report(runs["zeros"]))


def test_a_sensitivity_has_a_page(tmp_path: Path) -> None:
    found = Sensitivity.load(EARLIER / "sensitivity.json")
    page = secateur.report(found, out=tmp_path / "page.html")
    assert all(curve.name in seen(page) for curve in found.groups)


def test_what_cannot_have_a_page_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    found = Sensitivity.load(EARLIER / "sensitivity.json")
    for what, options, sentence in (
        ((), {}, "Give folders of runs"),
        ((3,), {}, "Give folders of runs"),
        ((pruned("zeros"), pruned("channels")), {}, "Give folders of runs"),
        ((found,), {"name": "x"}, "belong to runs"),
        (tuple(runs.values()), {"name": "x"}, "leave name out"),
        ((tmp_path,), {}, "There is no report of a run"),
        ((runs["zeros"],), {"runtime": "eager"}, "for comparing several runs"),
        (tuple(runs.values()), {"runtime": "eager"}, "no latency in eager of channels, zeros; `secateur measure"),
    ):
        with pytest.raises(UsageError, match=sentence):
            secateur.report(*what, **options)


def test_a_checkpoint_that_no_run_left_is_refused_in_one_sentence(tmp_path: Path) -> None:
    model = network()
    masks = secateur.plan_weights(model, 0.5)
    for noted in (None, [], {"records": [{"stop": "before"}]}, {"records": [], "tolerance": 0, "metric_name": "a"}):
        secateur.save(secateur.apply(model, masks), masks, tmp_path, metrics=noted)
        with pytest.raises(SecateurError, match="holds no run that can be read") as caught:
            secateur.report(tmp_path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_folder_from_a_stranger_gets_a_page_and_nothing_else_of_the_users(link: Any, tmp_path: Path) -> None:
    evil, users_own = tmp_path / "evil", tmp_path / "users_own"
    evil.mkdir()
    users_own.write_text("mine")
    shutil.copy(EARLIER / "report.json", evil)
    for name in ("report.html", "report.html.partial"):
        link(users_own, evil / name)
    assert "<!doctype html>" in secateur.report(evil).read_text().lower()
    assert users_own.read_text() == "mine"


@pytest.mark.parametrize("name", ["report.json", "secateur.json"])
def test_a_link_to_another_report_is_not_shown_to_a_stranger(name: str, tmp_path: Path) -> None:
    (tmp_path / "evil").mkdir()
    for file in EARLIER.joinpath("run-finished").iterdir():
        shutil.copy(file, tmp_path / "evil")
    (tmp_path / "evil" / name).unlink(missing_ok=True)
    (tmp_path / "evil" / name).symlink_to(shutil.copy(EARLIER / "run-finished" / "secateur.json", tmp_path))
    with pytest.raises(
        SecateurError, match=rf"{name} is a link to a file outside its folder; put the file itself there"
    ):
        secateur.report(tmp_path / "evil")
    assert not (tmp_path / "evil" / "report.html").exists()


def test_a_report_is_not_waited_for_and_of_bounded_size(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    os.mkfifo(file)
    with pytest.raises(SecateurError, match=r"report\.json cannot be read \(it is not a regular file\); make the run"):
        secateur.report(tmp_path)
    file.unlink()
    with file.open("wb") as opened:
        opened.truncate(200_000_000)
    with pytest.raises(SecateurError, match=r"report\.json cannot be read \(it has more than 33,554,432 bytes"):
        secateur.report(tmp_path)


def test_an_earlier_report_has_the_page_that_it_had(tmp_path: Path) -> None:
    shutil.copy(EARLIER / "report.json", tmp_path)
    text = seen(secateur.report(tmp_path))
    stored = json.loads((EARLIER / "report.json").read_text())
    (latency,) = stored["latencies"]
    assert stored["verdict"].replace("'", "&#39;") in text
    assert stored["cut"] in text
    assert f"{latency['pruned']['ratio']:.2f} [{latency['pruned']['low']:.2f}, {latency['pruned']['high']:.2f}]" in text
    assert f"{1e3 * latency['dense']['median']:.3f}" in text
    for layer in stored["layers"]:
        counts = "".join(f'<td class="number">{layer[key]}</td>' for key in ("left", "total"))
        assert f"<td>{layer['name']}</td>{counts}" in text
    assert "34 → <b>8.8 k</b>" in text
    assert stored["machine"]["cpu"] in text


def test_an_earlier_report_without_a_sheet_and_with_refusals(tmp_path: Path) -> None:
    stored = json.loads((EARLIER / "report.json").read_text())
    bare = {**stored, "latencies": [], "macs_of": "the example pass"}
    (tmp_path / "report.json").write_text(json.dumps(bare))
    text = seen(secateur.report(tmp_path))
    assert "as the plan counted them" in text
    assert "Not measured; `secateur measure stored` adds it." in text
    refusals = ["Not measured with batch 3: it <fails>.", "Not measured: it cannot run."]
    (tmp_path / "report.json").write_text(json.dumps({**stored, "latencies": [], "not_measured": refusals}))
    text = seen(secateur.report(tmp_path))
    assert "<p>Not measured with batch 3: it &lt;fails&gt;.</p>" in text
    assert "<p>Not measured: it cannot run.</p>" in text
    for damage in ({"layers": [3]}, {"macs": [1]}, {"latencies": [{}]}, {"records": []}, {"not_measured": [4]}):
        (tmp_path / "report.json").write_text(json.dumps({**stored, **damage}))
        with pytest.raises(SecateurError, match="is damaged"):
            secateur.report(tmp_path)


def test_a_half_of_a_letter_does_not_keep_a_page_from_being_written(tmp_path: Path) -> None:
    """In a name that was forged, or in that of a folder from a system with other letters."""
    stored = json.loads((EARLIER / "report.json").read_text())
    stored |= {"name": "half \ud800", "settings": {"task": "\udcff"}}
    folder = tmp_path / "\udcff"
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(stored))
    assert "half ?" in seen(secateur.report(folder))
    assert "half ?" in seen(
        secateur.report(folder, folder, out=tmp_path / "together.html").parent / "\udcff/report.html"
    )
