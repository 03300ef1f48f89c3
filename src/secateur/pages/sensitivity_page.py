"""The metric against the share removed, a line for each group, as a self-contained page that needs no network."""

from __future__ import annotations

from html import escape
from pathlib import Path

from secateur.channels import GroupCurve, Sensitivity
from secateur.pages.charts import COLOURS, GREY, SYMBOLS, as_text, new_figure
from secateur.pages.page import chart, save_page

__all__ = ["save_sensitivity_page"]

_DASHES = ("solid", "dash", "dot")
_MOST_LAYERS = 12


def save_sensitivity_page(sensitivity: Sensitivity, path: str | Path) -> None:
    """Hovering over a point names the layers that were cut there."""
    title = f"{sensitivity.metric.capitalize()} when one group alone loses channels"
    metric = as_text(sensitivity.metric)
    figure = new_figure("", "channels of the group removed", metric, height=640, label=title)
    for i, curve in enumerate(sensitivity.groups):
        shares, metrics = zip((0.0, sensitivity.dense), *curve.points, strict=True)
        # No two of the first 36 groups look alike, and neighbours differ in more than colour.
        colour, symbol = COLOURS[i % len(COLOURS)], SYMBOLS[(i + i // len(COLOURS)) % len(SYMBOLS)]
        figure.add_scatter(
            name=as_text(curve.name),
            x=shares,
            y=metrics,
            text=[_hover(curve, sensitivity, share, metric) for share, metric in zip(shares, metrics, strict=True)],
            hovertemplate="%{text}<extra></extra>",
            mode="lines+markers",
            line={"color": colour, "width": 2, "dash": _DASHES[i // len(COLOURS) % len(_DASHES)]},
            marker={"symbol": symbol, "size": 8},
            showlegend=True,
        )
    figure.add_hline(
        y=sensitivity.dense,
        line={"dash": "dot", "color": GREY},
        annotation_text=f"nothing removed: {sensitivity.dense:.4f}",
        annotation_position="top right",
    )
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(tickformat=".0%", rangemode="tozero")
    if sensitivity.metric == "accuracy":
        figure.update_yaxes(tickformat=".0%")
    save_page(path, title, [f"<h1>{escape(title)}</h1>", chart(figure)])


def _hover(curve: GroupCurve, sensitivity: Sensitivity, share: float, metric: float) -> str:
    layers = "<br>".join(map(as_text, curve.layers[:_MOST_LAYERS]))
    more = f"<br>and {len(curve.layers) - _MOST_LAYERS} more" if len(curve.layers) > _MOST_LAYERS else ""
    removed = f"{round(share * curve.units)} of {curve.units} channels removed ({share:.0%})"
    value = f"{as_text(sensitivity.metric)} {metric:.4f}"
    return f"<b>{as_text(curve.name)}</b><br>{removed}<br>{value}<br><br>layers:<br>{layers}{more}"
