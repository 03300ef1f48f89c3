"""The metric against the share removed, a line for each group, as a self-contained page that needs no network."""

from __future__ import annotations

from pathlib import Path

from secateur.atomic import replace_file
from secateur.report.curve import COLOURS, PAGE_CONFIG, SYMBOLS
from secateur.sensitivity import GroupCurve, Sensitivity

__all__ = ["save_sensitivity_page"]

_DASHES = ("solid", "dash", "dot")
_MOST_LAYERS = 12


def save_sensitivity_page(sensitivity: Sensitivity, path: str | Path) -> None:
    """Hovering over a point names the layers that were cut there."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for i, curve in enumerate(sensitivity.groups):
        shares, metrics = zip((0.0, sensitivity.dense), *curve.points, strict=True)
        # No two of the first 36 groups look alike, and neighbours differ in more than colour.
        colour, symbol = COLOURS[i % len(COLOURS)], SYMBOLS[(i + i // len(COLOURS)) % len(SYMBOLS)]
        figure.add_scatter(
            name=curve.name,
            x=shares,
            y=metrics,
            text=[_hover(curve, sensitivity, share, metric) for share, metric in zip(shares, metrics, strict=True)],
            hovertemplate="%{text}<extra></extra>",
            mode="lines+markers",
            line={"color": colour, "width": 2, "dash": _DASHES[i // len(COLOURS) % len(_DASHES)]},
            marker={"symbol": symbol, "size": 8},
        )
    figure.add_hline(
        y=sensitivity.dense,
        line={"dash": "dot", "color": "grey"},
        annotation_text=f"nothing removed: {sensitivity.dense:.4f}",
        annotation_position="top right",
    )
    figure.update_layout(
        title=f"{sensitivity.metric.capitalize()} when one group alone loses channels",
        xaxis_title="share of the group's channels removed",
        yaxis_title=sensitivity.metric,
        template="plotly_white",
        font={"size": 14},
        hovermode="closest",
        legend={"title": "group"},
    )
    figure.update_xaxes(tickformat=".0%", rangemode="tozero")
    if sensitivity.metric == "accuracy":
        figure.update_yaxes(tickformat=".0%")
    with replace_file(path) as partial:
        figure.write_html(partial, include_plotlyjs=True, full_html=True, config=PAGE_CONFIG)


def _hover(curve: GroupCurve, sensitivity: Sensitivity, share: float, metric: float) -> str:
    layers = "<br>".join(curve.layers[:_MOST_LAYERS])
    more = f"<br>and {len(curve.layers) - _MOST_LAYERS} more" if len(curve.layers) > _MOST_LAYERS else ""
    removed = f"{round(share * curve.units)} of {curve.units} channels removed ({share:.0%})"
    return f"<b>{curve.name}</b><br>{removed}<br>{sensitivity.metric} {metric:.4f}<br><br>layers:<br>{layers}{more}"
