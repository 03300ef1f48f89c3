"""The accuracy curve through training, cut and recovery, as a self-contained page that needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from secateur.loop import History, Result
from secateur.pages.charts import GREY, add_points, as_text, metric_axis, new_figure
from secateur.pages.page import save_page


def save_curve(results: Mapping[str, Result], path: str | Path) -> None:
    """Draws the metric of one or more runs over their epochs; all runs meet at 0, where the cut is.

    Args:
        results: what `prune` returned, by the names for the legend.
        path: of the page, one HTML file that needs no network.
    """
    metric = " / ".join(sorted({result.metric_name for result in results.values()}))
    title = f"{metric.capitalize()} before the cut, right after it, repaired, and while recovering"
    figure = new_figure("", "epochs from the cut", metric, height=520, label=title)
    for i, (name, result) in enumerate(results.items()):
        metrics = [record.metric for record in result.records]
        texts = [as_text(f"{record.stop}: {record.metric:.4f}{record.pruned}") for record in result.records]
        add_points(figure, name, i, epochs_from_cut(result), metrics, texts)
    figure.add_vline(x=0, line={"dash": "dot", "color": GREY}, annotation_text="cut", annotation_position="top right")
    metric_axis(figure, metric)
    save_page(path, "chart.html.j2", title=title, figure=figure)


def epochs_from_cut(history: History) -> list[float]:
    return [record.epochs - history.dense.epochs for record in history.records]
