"""Every page: a template of `templates/` filled with plain data and figures, as one file that needs no network. Of many
pages in one folder, most refer to one copy of plotly.js, which is far larger than what they show.

Whatever a template shows is escaped, but for what it marks as safe: plotly.js and the figures that plotly drew.
"""

from __future__ import annotations

from functools import cache
from os import fsencode
from os.path import relpath
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import quote as quote_for_browser

from jinja2 import Environment, PackageLoader, StrictUndefined

from secateur.base import byte_text, milliseconds, short_count, write_text

PAGE_FILE = "report.html"
PLOTLY_FILE = "plotly.min.js"
_CONFIG = {"displaylogo": False, "displayModeBar": False, "responsive": True}


def save_page(path: str | Path, template: str, plotly: Path | None = None, **data: Any) -> None:
    """`plotly` is a file that `save_plotly` wrote, for the page to refer to; by default the page holds all it needs."""
    from plotly.offline import get_plotlyjs

    source = {"plotly_link": link(plotly, Path(path))} if plotly else {"plotly_link": "", "plotly": get_plotlyjs()}
    write_text(path, render(template, **source, **data))


def save_plotly(path: Path) -> None:
    from plotly.offline import get_plotlyjs

    write_text(path, get_plotlyjs())


def link(target: Path, page: Path) -> str:
    """From a page to another file, as a browser reads it."""
    return quote_for_browser(fsencode(Path(relpath(target, page.parent)).as_posix()))


def render(template: str, **data: Any) -> str:
    return _templates().get_template(template).render(data)


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("secateur.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "bytes": byte_text,
        "drawn": _drawn,
        "milliseconds": milliseconds,
        "quoted": quote,
        "share": "{:.1%}".format,
        "short": short_count,
        "thousands": "{:,}".format,
        "without_unit_of": _without_unit_of,
    }
    return templates


def _drawn(figure: Any) -> str:
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=_CONFIG))


def _without_unit_of(before: str, after: str) -> str:
    number, _, unit = before.partition(" ")
    return number if unit and after.endswith(f" {unit}") else before
