"""The pages in a real browser: every chart is drawn, nothing is asked of the network, and it works without a mouse.

The screenshots are kept in the folder that SECATEUR_SCREENSHOTS names, for a person to look at.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from secateur.pages.cuda_page import save_gpu_page
from secateur.pages.overlay_page import save_overlay_page
from secateur.pages.page import save_plotly
from secateur.pages.published_page import save_published_page
from secateur.pages.run_page import save_run_page
from secateur.pages.run_report import RunReport
from secateur.pages.sweep_page import save_sweep_page
from secateur.studies.gpu.cuda_study import study_gpu
from secateur.studies.published.gpu_facts import gpu_facts
from tests.support.hardware_reports import FakeTimer
from tests.support.report_runs import evil_report, large_report, real_report
from tests.support.stand_in_gpu import SMALL, StandInGpu, StandInWorker, everything_fails_once
from tests.support.sweeps import made_up_sweep, with_failures

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1200, "height": 900}
PAGES = {
    "channels": 4,
    "zeros": 4,
    "large": 4,
    "evil": 4,
    "overlay": 1,
    "published": 0,
    "gpu": 2,
    "sweep": 1,
    "large-sweep": 1,
}
"""The pages, and how many charts plotly draws on each."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    reports = {name: real_report(name, "eager", "onnxruntime") for name in ("channels", "zeros")}
    made_up = {"large": large_report(reports["channels"]), "evil": evil_report(reports["channels"])}
    for name, report in {**reports, **made_up}.items():
        save_run_page(report, folder / f"{name}.html")
    save_overlay_page(reports, folder / "overlay.html", {name: f"{name}.html" for name in reports})
    save_published_page(gpu_facts(), folder / "published.html")
    worker = StandInWorker(StandInGpu(everything_fails_once), FakeTimer())
    save_gpu_page(study_gpu(SMALL, worker, progress=False), folder / "gpu.html")
    _save_sweeps(folder, reports["channels"])
    return {name: folder / f"{name}.html" for name in PAGES}


def _save_sweeps(folder: Path, report: RunReport) -> None:
    """A small one, of which one run has failed and another has a page, and one of a thousand runs."""
    found = with_failures(made_up_sweep(folder / "sweep"), "The loss became infinite in epoch 2; lower the rate.")
    best = found.versions[0].best_run.name
    (found.folder / best).mkdir(parents=True)
    save_plotly(plotly := found.folder / "plotly.min.js")
    save_run_page(report, found.folder / best / "report.html", plotly)
    save_sweep_page(found, folder / "sweep.html")
    save_sweep_page(made_up_sweep(folder, versions=334), folder / "large-sweep.html")


class Visit:
    """An open page and whatever went wrong on it. The tab was blank: a new one takes seconds to get going."""

    def __init__(self, tab: Any, file: Path, viewport: dict[str, int] = DESK, color_scheme: str = "light") -> None:
        self.page = tab
        self.faults: list[str] = []
        self.listeners: dict[str, Callable[[Any], None]] = {
            "console": lambda message: self.faults.append(message.text),
            "pageerror": lambda error: self.faults.append(str(error)),
            "request": lambda asked: self.faults.extend([asked.url] * (asked.url != file.as_uri())),
        }
        for event, listener in self.listeners.items():
            tab.on(event, listener)
        tab.set_viewport_size(viewport)
        tab.emulate_media(media="screen", color_scheme=color_scheme)
        tab.goto(file.as_uri())

    def close(self) -> None:
        for event, listener in self.listeners.items():
            self.page.remove_listener(event, listener)
        self.page.mouse.move(0, 0)
        self.page.goto("about:blank")

    def look(self, name: str) -> None:
        """Waits until all is drawn, and what goes wrong then has been heard of. A picture takes the browser seconds."""
        self.page.evaluate("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        self.page.evaluate("document.fonts.ready.then(() => null)")
        if folder := os.environ.get("SECATEUR_SCREENSHOTS"):
            self.page.screenshot(path=Path(folder, f"{name}.png"), full_page=True)

    def colour(self, selector: str, what: str) -> str:
        """Of the first that is there, which it is not while a chart is drawn anew."""
        script = "([selector, what]) => getComputedStyle(document.querySelector(selector))[what]"
        return str(self.page.wait_for_function(script, arg=[selector, what]).json_value())


@pytest.fixture(scope="module")
def tabs(browser: Any) -> list[Any]:
    """Blank ones."""
    return []


@pytest.fixture
def visit(browser: Any, tabs: list[Any], pages: dict[str, Path]) -> Iterator[Callable[..., Visit]]:
    """Opens a page by its name."""
    with ExitStack() as opened:

        def open_page(name: str, *where: Any, **how: Any) -> Visit:
            tab = tabs.pop() if tabs else browser.new_page()
            opened.callback(tabs.append, tab)
            return opened.enter_context(closing(Visit(tab, pages[name], *where, **how)))

        yield open_page


@pytest.mark.parametrize("name", PAGES)
def test_every_chart_is_drawn_and_nothing_goes_wrong(name: str, visit: Callable[..., Visit]) -> None:
    shown = visit(name)
    charts = shown.page.locator(".js-plotly-plot")
    assert charts.count() == PAGES[name]
    for i in range(charts.count()):
        shapes = charts.nth(i).locator(".cartesianlayer .trace path[d]")
        assert shapes.count() > 2, f"chart {i} is empty"
    shown.look(f"{name}-light")
    assert shown.page.evaluate("window.ran") is None, "a name ran as a program"
    assert shown.faults == []


@pytest.mark.parametrize("name", ["channels", "large", "overlay", "published", "gpu", "sweep"])
def test_a_phone_shows_it_without_scrolling_sideways(name: str, visit: Callable[..., Visit]) -> None:
    shown = visit(name, PHONE)
    for summary in shown.page.locator("summary").all():
        summary.click()
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    shown.look(f"{name}-phone")
    assert shown.faults == []


def test_a_dark_page_has_light_text_in_the_charts_as_well(visit: Callable[..., Visit]) -> None:
    light, dark = (visit("channels", color_scheme=scheme) for scheme in ("light", "dark"))
    for selector, what in (("body", "backgroundColor"), ("body", "color"), (".xtick text", "fill")):
        assert light.colour(selector, what) != dark.colour(selector, what)
    assert dark.colour(".xtick text", "fill") == dark.colour("body", "color")
    dark.look("channels-dark")


def test_the_theme_is_chosen_from_the_keyboard(visit: Callable[..., Visit]) -> None:
    shown = visit("channels", color_scheme="light")
    before = shown.colour("body", "backgroundColor")
    shown.page.keyboard.press("Tab")
    assert shown.page.evaluate("document.activeElement.className") == "skip"
    shown.page.keyboard.press("Tab")
    shown.page.keyboard.press("Enter")
    assert shown.colour("body", "backgroundColor") != before
    assert shown.page.locator(".theme").get_attribute("aria-pressed") == "true"
    assert shown.colour(".xtick text", "fill") == shown.colour("body", "color")
    shown.page.keyboard.press(" ")
    assert shown.colour("body", "backgroundColor") == before


VISIBLE = "chart => chart._fullData.filter(trace => trace.showlegend).map(trace => trace.visible)"


def test_a_legend_entry_hides_its_trace(visit: Callable[..., Visit]) -> None:
    shown = visit("channels")
    chart = shown.page.locator(".js-plotly-plot").nth(2)  # the latencies
    drawn = chart.locator(".cartesianlayer .trace")
    assert drawn.count() == 2
    chart.locator(".legendtoggle").first.click()
    sync_api.expect(drawn).to_have_count(1)
    assert chart.evaluate(VISIBLE) == ["legendonly", True]


def test_a_legend_entry_is_a_button_for_the_keyboard(visit: Callable[..., Visit]) -> None:
    shown = visit("channels")
    chart = shown.page.locator(".js-plotly-plot").nth(2)
    second = chart.get_by_role("button", name="null control")
    second.focus()
    shown.page.keyboard.press("Enter")
    assert chart.evaluate(VISIBLE) == [True, "legendonly"]
    assert second.get_attribute("aria-pressed") == "false"
    shown.page.keyboard.press(" ")  # it still has the focus
    assert chart.evaluate(VISIBLE) == [True, True]


def test_a_group_tells_about_itself_under_the_mouse_and_the_arrows(visit: Callable[..., Visit]) -> None:
    shown = visit("large")
    rows, about = shown.page.locator(".groups li"), shown.page.locator(".about")
    assert rows.count() == 153
    rows.nth(1).hover()
    assert "encoder.stages.0.blocks.1.attention.query: 12 → 6 heads" in about.inner_text()
    rows.first.focus()
    shown.page.keyboard.press("ArrowDown")
    shown.page.keyboard.press("ArrowDown")
    assert "encoder.stages.0.blocks.2.attention.query: 64 → 21 channels" in about.inner_text()
    shown.page.keyboard.press("End")
    assert "left alone, because the model's output keeps its shape" in about.inner_text()
    widths = rows.locator(".before").evaluate_all("bars => bars.map(bar => bar.offsetWidth)")
    assert max(widths) > 4 * min(widths) > 0


def test_published_speedups_are_filtered_and_drawn_beside_the_line_of_dense(visit: Callable[..., Visit]) -> None:
    shown = visit("published")
    rows, count = shown.page.locator(".fact:visible"), shown.page.locator("output")
    assert (rows.count(), count.inner_text()) == (43, "43 rows")
    shown.page.get_by_label("Question").select_option("2:4")
    shown.page.get_by_label("GPU").select_option("A100")
    assert {row.get_attribute("data-gpu") for row in rows.all()} == {"A100"}
    shown.page.get_by_label("Batch").select_option("batch 1")
    assert (rows.count(), count.inner_text()) == (1, "1 row")
    assert "0.11" in rows.first.inner_text()
    bar = rows.first.locator(".range").evaluate("bar => [bar.firstChild.offsetLeft, bar.offsetWidth]")
    assert bar[0] < 0.4 * bar[1], "much slower than dense, whose line is at 69 % of the width"
    assert shown.faults == []


DRAWN = "chart => [chart.layout.xaxis.title.text, chart._fullLayout.xaxis.range[1], chart.data.at(-1).x[0]]"


@pytest.mark.parametrize("name", ["sweep", "large-sweep"])
def test_a_sweep_is_drawn_by_another_cost_from_the_keyboard(name: str, visit: Callable[..., Visit]) -> None:
    shown = visit(name)
    chart = shown.page.locator(".js-plotly-plot")
    title, end, dense = chart.evaluate(DRAWN)
    assert (title, dense) == ("latency, ms", 10)
    assert dense < end < 2 * dense
    shown.page.get_by_label("latency").focus()
    shown.page.keyboard.press("ArrowDown")
    assert shown.page.get_by_label("file size").is_checked()
    shown.page.wait_for_function("document.querySelector('.g-xtitle').textContent === 'file size'")
    title, end, dense = chart.evaluate(DRAWN)
    assert (title, dense) == ("file size", 40_000_000)
    assert dense < end < 2 * dense, "the axis has followed"
    assert shown.faults == []


def test_a_thousand_runs_are_all_drawn(visit: Callable[..., Visit]) -> None:
    traces = visit("large-sweep").page.locator(".scatterlayer .trace")
    assert [traces.nth(i).locator("path.point").count() for i in (1, 2)] == [1002, 334]
    assert traces.nth(2).locator(".textpoint").count() == 0


def test_a_point_of_a_sweep_leads_to_the_page_of_its_best_seed(visit: Callable[..., Visit]) -> None:
    shown = visit("sweep")
    place = shown.page.locator(".scatterlayer .trace").nth(2).locator("path.point").first.bounding_box()
    shown.page.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    sync_api.expect(shown.page.locator(".hoverlayer")).to_contain_text("seeds 0, 1, 2")
    shown.page.mouse.down()
    shown.page.mouse.up()
    shown.page.wait_for_url("**/sweep/channels%3D0.15-seed-*/report.html")
    drawn = shown.page.locator(".js-plotly-plot .cartesianlayer .trace path[d]")
    assert drawn.count() > 8, "with the library beside the folders of the runs"


def test_paper_is_light_and_as_wide_as_paper(visit: Callable[..., Visit], tmp_path: Path) -> None:
    shown = visit("channels", color_scheme="dark")
    shown.page.emulate_media(media="print", color_scheme="dark")
    assert shown.colour("body", "backgroundColor") == "rgb(255, 255, 255)"
    assert shown.colour(".xtick text", "fill") == shown.colour("body", "color")
    assert not shown.page.locator(".theme").is_visible()
    shown.look("channels-print")
    folder = Path(os.environ.get("SECATEUR_SCREENSHOTS", tmp_path))
    shown.page.evaluate("""addEventListener('beforeprint', () => {
        document.title = Math.max(...[...document.querySelectorAll('.main-svg')].map(svg => svg.clientWidth));
    })""")
    shown.page.pdf(path=folder / "channels.pdf", format="A4", print_background=True)
    assert int(shown.page.title()) <= 660
    assert not shown.page.locator("details[open]").count(), "what was opened for the paper is closed again"
