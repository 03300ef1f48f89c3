"""Takes pictures for the README: `python scripts/take_pictures.py docs/report.png runs/channels-50 [more runs …]`.

One run gives the top of its report page, several give the chart that lays them over one another. A picture is light,
1200 pixels wide and at most 150 kB, so that it can be committed. It needs playwright and Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import secateur

WIDTH = 1200
MOST_BYTES = 150_000
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu")


def take_picture(page: Path, picture: Path) -> None:
    """Down to the end of the first chart where there are several, otherwise all of the page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        tab = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        tab.goto(page.resolve().as_uri())
        tab.add_style_tag(content=".theme { display: none; }")
        charts = tab.locator(".chart")
        shown = (charts.first if charts.count() > 1 else tab.locator("main")).bounding_box()
        height = int(shown["y"] + shown["height"])
        tab.screenshot(path=picture, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
        browser.close()
    size = picture.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{picture} has {size:,} bytes, more than {MOST_BYTES:,}; compare fewer runs.")
    print(f"{picture}: {WIDTH} × {height} pixels, {size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path, help="the PNG file to write")
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished runs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        take_picture(secateur.report(*given.runs, out=Path(folder) / "page.html"), given.picture)


if __name__ == "__main__":
    main()
