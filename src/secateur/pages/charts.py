"""What all charts share. Colours are Okabe and Ito's, told apart by every kind of colour vision; lines differ by marker
and bars by pattern as well."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from secateur.bench import Timing
from secateur.loop import Record

__all__ = ["COLOURS", "GREY", "PATTERNS", "SYMBOLS", "as_text", "interval", "metric_interval", "new_figure"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
PATTERNS = ("", "/", ".", "x", "\\", "-")
GREY = "#888888"


def new_figure(title: str, x: str, y: str, height: int = 420, label: str = "") -> Any:
    """Without a background: the page around it has a light and a dark one, and colours the text and the grid.

    The label, or else the title, says what is drawn to those who cannot see it.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(
        meta=label or title,
        title={"text": title, "font": {"size": 15}},
        xaxis_title=x,
        yaxis_title=y,
        height=height,
        font={"size": 13, "family": "system-ui, sans-serif"},
        margin={"l": 10, "r": 10, "t": 45 if title else 10, "b": 10},
        legend={"orientation": "h", "y": -0.2, "yanchor": "top"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    figure.update_xaxes(automargin=True, gridcolor=GREY)
    figure.update_yaxes(automargin=True, gridcolor=GREY)
    return figure


def as_text(text: str) -> str:
    """For the texts of a chart, which plotly reads as a kind of HTML that knows no quotation marks."""
    return escape(text, quote=False)


def interval(timings: Sequence[Timing]) -> dict[str, Any]:
    """The error bars of ratios."""
    return _error_bars([(timing.low, timing.ratio, timing.high) for timing in timings])


def metric_interval(records: Sequence[Record]) -> dict[str, Any]:
    """The error bars of metrics; of no length where nobody knows the interval."""
    unknown = [(record.metric, record.metric) for record in records]
    ends = [record.interval or same for record, same in zip(records, unknown, strict=True)]
    return _error_bars([(low, record.metric, high) for record, (low, high) in zip(records, ends, strict=True)])


def _error_bars(spans: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, high - middle) for _, middle, high in spans],
        "arrayminus": [max(0.0, middle - low) for low, middle, _ in spans],
        "thickness": 1,
    }
