"""The metric against the share removed, a line for each group, as a self-contained page that needs no network."""

from __future__ import annotations

from pathlib import Path

from secateur.channels import GroupCurve, Sensitivity
from secateur.pages.charts import GREY, add_points, as_text, metric_axis, new_figure
from secateur.pages.page import save_page

_MOST_LAYERS = 12


def save_sensitivity_page(sensitivity: Sensitivity, path: str | Path) -> None:
    """Hovering over a point names the layers that were cut there."""
    title = f"{sensitivity.metric.capitalize()} when one group alone loses channels"
    figure = new_figure("", "channels of the group removed", sensitivity.metric, height=640, label=title)
    for i, curve in enumerate(sensitivity.groups):
        points = [(0.0, sensitivity.dense), *curve.points]
        texts = [_hover(curve, sensitivity.metric, *point) for point in points]
        add_points(figure, curve.name, i, [share for share, _ in points], [metric for _, metric in points], texts)
    figure.add_hline(
        y=sensitivity.dense,
        line={"dash": "dot", "color": GREY},
        annotation_text=f"nothing removed: {sensitivity.dense:.4f}",
        annotation_position="top right",
    )
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(tickformat=".0%", rangemode="tozero")
    metric_axis(figure, sensitivity.metric)
    save_page(path, "chart.html.j2", title=title, figure=figure)


def _hover(curve: GroupCurve, metric_name: str, share: float, metric: float) -> str:
    layers = "<br>".join(map(as_text, curve.layers[:_MOST_LAYERS]))
    more = f"<br>and {len(curve.layers) - _MOST_LAYERS} more" if len(curve.layers) > _MOST_LAYERS else ""
    removed = f"{round(share * curve.units)} of {curve.units} channels removed ({share:.0%})"
    return f"{removed}<br>{as_text(metric_name)} {metric:.4f}<br><br>layers:<br>{layers}{more}"
