"""What all charts share. Colours are Okabe and Ito's, told apart by every kind of colour vision; lines differ by marker
and dash and bars by pattern as well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from secateur.bench import Measurement, Timing
from secateur.loop import Record

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
PATTERNS = ("", "/", ".", "x", "\\", "-")
DASHES = ("solid", "dash", "dot")
GREY = "#888888"
Values = Iterable[Any]
_HOVER = "<extra>%{fullData.name}</extra>"


def new_figure(title: str, x: str, y: str, height: int = 420, label: str = "") -> Any:
    """Without a background: the page around it has a light and a dark one, and colours the text and the grid.

    The label, or else the title, says what is drawn to those who cannot see it.
    """
    import plotly.graph_objects as go

    axis = {"automargin": True, "gridcolor": GREY}
    return go.Figure(
        layout={  # all at once: plotly takes several times as long to update a figure
            "meta": label or title,
            "title": {"text": title, "font": {"size": 15}},
            "xaxis": {"title": {"text": x}, **axis},
            "yaxis": {"title": {"text": as_text(y)}, **axis},
            "height": height,
            "font": {"size": 13, "family": "system-ui, sans-serif"},
            "margin": {"l": 10, "r": 10, "t": 45 if title else 10, "b": 10},
            "legend": {"orientation": "h", "y": -0.2, "yanchor": "top"},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
        }
    )


def add_points(
    figure: Any, name: str, i: int, x: Values, y: Values, texts: Iterable[str], dash: str = "", **more: Any
) -> None:
    """The i-th line of a chart. No two of the first 36 look alike, and neighbours differ in more than colour. Pointing
    at it shows the `texts`, in plotly's kind of HTML."""
    row, column = divmod(i, len(COLOURS))
    look = {
        "mode": "lines+markers",
        "line": {"color": COLOURS[column], "width": 2, "dash": dash or DASHES[row % len(DASHES)]},
        "marker": {"color": COLOURS[column], "symbol": SYMBOLS[(i + row) % len(SYMBOLS)], "size": 9},
        "showlegend": True,
    }
    hover = {"text": list(texts), "hovertemplate": "%{text}" + _HOVER}
    figure.add_scatter(name=as_text(name), x=list(x), y=list(y), **{**look, **hover, **more})


def add_bars(figure: Any, name: str, i: int, x: Values, y: Values, texts: Iterable[str], **more: Any) -> None:
    marker = {"color": COLOURS[i % len(COLOURS)], "pattern": {"shape": PATTERNS[i % len(PATTERNS)], "fgcolor": "white"}}
    hover = {"customdata": list(texts), "hovertemplate": "%{customdata}" + _HOVER}
    figure.add_bar(name=as_text(name), x=list(x), y=list(y), marker={**marker, "line_width": 0}, **hover, **more)


def metric_axis(figure: Any, metric: str, digits: int = 0) -> None:
    """An accuracy in per cent; of another metric nobody knows the unit."""
    if metric == "accuracy":
        figure.update_yaxes(tickformat=f".{digits}%")


def as_text(text: str) -> str:
    """For the texts of a chart, which plotly reads as a kind of HTML that knows no quotation marks."""
    return escape(text, quote=False)


def where(measurement: Measurement) -> str:
    comparison = measurement.comparison
    place = f"{comparison.runtime}, batch {measurement.batch}"
    return place if (comparison.device, comparison.threads) == ("cpu", 1) else f"{place}, {comparison.place}"


def interval(timings: Sequence[Timing]) -> dict[str, Any]:
    """The error bars of ratios."""
    return error_bars([(timing.low, timing.ratio, timing.high) for timing in timings])


def metric_interval(records: Sequence[Record]) -> dict[str, Any]:
    """The error bars of metrics; of no length where nobody knows the interval."""
    ends = [record.interval or (record.metric, record.metric) for record in records]
    return error_bars([(low, record.metric, high) for record, (low, high) in zip(records, ends, strict=True)])


def error_bars(spans: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    """Of each the lower end, the middle and the upper end."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, high - middle) for _, middle, high in spans],
        "arrayminus": [max(0.0, middle - low) for low, middle, _ in spans],
        "thickness": 1,
    }
