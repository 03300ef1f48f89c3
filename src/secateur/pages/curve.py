"""The accuracy curve through training, cut and recovery, as a self-contained page that needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from secateur.loop import Record, Result
from secateur.pages.charts import COLOURS, GREY, SYMBOLS, as_text, new_figure
from secateur.pages.page import chart, save_page

__all__ = ["epochs_from_cut", "save_curve"]


def save_curve(results: Mapping[str, Result], path: str | Path) -> None:
    """Draws the metric of one or more runs over their epochs; all runs meet at 0, where the cut is.

    Args:
        results: what `prune` returned, by the names for the legend.
        path: of the page, one HTML file that needs no network.
    """
    metrics = sorted({result.metric_name for result in results.values()})
    title = f"{' / '.join(metrics).capitalize()} before the cut, right after it, and while recovering"
    figure = new_figure("", "epochs from the cut", as_text(" / ".join(metrics)), height=520, label=title)
    for i, (name, result) in enumerate(results.items()):
        figure.add_scatter(
            name=as_text(name),
            x=epochs_from_cut(result.records),
            y=[record.metric for record in result.records],
            text=[as_text(f"{record.stop}: {record.metric:.4f}{record.pruned}") for record in result.records],
            hovertemplate="%{text}<extra>%{fullData.name}</extra>",
            mode="lines+markers",
            line={"color": COLOURS[i % len(COLOURS)], "width": 2},
            marker={"symbol": SYMBOLS[i % len(SYMBOLS)], "size": 8},
            showlegend=True,
        )
    figure.add_vline(x=0, line={"dash": "dot", "color": GREY}, annotation_text="cut", annotation_position="top right")
    if metrics == ["accuracy"]:
        figure.update_yaxes(tickformat=".0%")
    save_page(path, title, [f"<h1>{escape(title)}</h1>", chart(figure)])


def epochs_from_cut(records: Sequence[Record]) -> list[float]:
    dense = [record for record in records if record.phase in ("before", "train")]
    return [record.epochs - dense[-1].epochs for record in records]
