"""The frame of every page: one file that needs no network, light and dark, for screen, phone, paper and keyboard."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from secateur.base import write_text

__all__ = ["chart", "charts", "details", "paragraphs", "save_page", "table"]

_CONFIG = {"displaylogo": False, "displayModeBar": False, "responsive": True}


def save_page(path: str | Path, title: str, body: Iterable[str]) -> None:
    """`body` is HTML; `title` is text."""
    from plotly.offline import get_plotlyjs

    page = _part("page.html").substitute(
        title=escape(title),
        style=_part("style.css").template,
        plotly=get_plotlyjs(),
        body="\n".join(body),
        script=_part("behaviour.js").template,
    )
    write_text(path, page)


@cache
def _part(name: str) -> Template:
    return Template(files("secateur.pages").joinpath("frame", name).read_text(encoding="utf-8"))


def chart(figure: Any) -> str:
    """A figure that `new_figure` began; its numbers belong in a table beside it, for those who cannot see it."""
    div = figure.to_html(full_html=False, include_plotlyjs=False, config=_CONFIG)
    return f'<div class="chart" role="figure" aria-label="{escape(figure.layout.meta)}">{div}</div>'


def charts(figures: Iterable[Any]) -> str:
    """Side by side where there is room."""
    return f'<div class="charts">{"".join(map(chart, figures))}</div>'


def paragraphs(sentences: Iterable[str]) -> str:
    return "\n".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> str:
    """Scrolls within itself where it is wider than the page; the columns numbered in `right` are aligned there."""

    def line(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(cell(tag, i, text) for i, text in enumerate(cells)) + "</tr>"

    def cell(tag: str, i: int, text: str) -> str:
        number = ' class="number"' if i in right else ""
        return f"<{tag}{number}>{escape(text)}</{tag}>"

    body = "".join(line("td", row) for row in rows)
    return (
        f'<div class="table" tabindex="0"><table><thead>{line("th", head)}</thead><tbody>{body}</tbody></table></div>'
    )


def details(summary: str, *content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{''.join(content)}</details>"
