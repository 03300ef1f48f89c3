"""The accuracy curve through training, cut and recovery, as a self-contained page that needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from secateur.atomic import replace_file
from secateur.result import Record, Result

__all__ = ["save_curve"]

# Okabe and Ito's colours, told apart by every kind of colour vision; each line has a marker of its own as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
PAGE_CONFIG = {"displaylogo": False, "responsive": True}


def save_curve(results: Mapping[str, Result], path: str | Path) -> None:
    """Draws the metric of one or more runs over their epochs; all runs meet at 0, where the cut is."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for i, (name, result) in enumerate(results.items()):
        points = result.records
        figure.add_scatter(
            name=name,
            x=_epochs_from_cut(points),
            y=[record.metric for record in points],
            text=[_hover(record) for record in points],
            hovertemplate="%{text}<extra>%{fullData.name}</extra>",
            mode="lines+markers",
            line={"color": COLOURS[i % len(COLOURS)], "width": 2},
            marker={"symbol": SYMBOLS[i % len(SYMBOLS)], "size": 8},
        )
    metrics = {result.metric_name for result in results.values()}
    figure.add_vline(x=0, line={"dash": "dot", "color": "grey"}, annotation_text="cut", annotation_position="top right")
    figure.update_layout(
        title=f"{' / '.join(sorted(metrics)).capitalize()} before the cut, right after it, and while recovering",
        xaxis_title="epochs from the cut",
        yaxis_title=" / ".join(sorted(metrics)),
        template="plotly_white",
        font={"size": 14},
        legend={"orientation": "h", "y": -0.2},
    )
    if metrics == {"accuracy"}:
        figure.update_yaxes(tickformat=".0%")
    with replace_file(path) as partial:
        figure.write_html(partial, include_plotlyjs=True, full_html=True, config=PAGE_CONFIG)


def _epochs_from_cut(records: tuple[Record, ...]) -> list[float]:
    dense = [record for record in records if record.phase in ("before", "train")]
    return [record.epochs - dense[-1].epochs for record in records]


def _hover(record: Record) -> str:
    return f"{record.stop}: {record.metric:.4f}{record.pruned}"
