"""`report_of`: gathers what the page of a run shows from what its stops returned."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib.metadata import version
from platform import python_version
from typing import Any

from secateur import __version__
from secateur.base import UsageError, count_text, unwrap
from secateur.bench import Sheet, this_machine
from secateur.loop import Result
from secateur.pages.run_report import Latency, LayerLeft, RunReport
from secateur.weights import find_weights

__all__ = ["report_of"]


def report_of(
    result: Result,
    sheet: Sheet | None = None,
    *,
    name: str = "pruned",
    settings: Mapping[str, Any] | None = None,
    file_bytes: int | None = None,
    versions: Mapping[str, str] | None = None,
) -> RunReport:
    """Gathers what the page of a run shows.

    Args:
        result: what `prune` returned.
        sheet: what `measure` found, with the dense model first; `name` tells which of several others is this run's.
        name: for the title of the page, and the folder in the lines that load the result.
        settings: of the run, with values that JSON can hold.
        file_bytes: of the pruned model as it is stored; by default, those of a plain file with all its zeros.
        versions: of the libraries that ran; by default those that are running.
    """
    plan, masks = result.plan, result.masks
    measured = _measured_name(sheet, name) if sheet else ""
    macs, macs_of = plan.macs if plan else (), "one example"
    if sheet:
        macs = sheet.footprints[sheet.baseline].macs, sheet.footprints[measured].macs
    return RunReport(
        name=name,
        metric_name=result.metric_name,
        tolerance=result.tolerance,
        records=result.records,
        verdict=result.verdict,
        recovered=result.recovered,
        cut=_what_was_done(result),
        target=str(plan.outcome) if plan and plan.outcome else "",
        unit="channels" if plan else "weights",
        layers=_layers_left(result),
        groups=plan.groups if plan else (),
        left_alone=plan.left_alone if plan else masks.left_alone,
        macs=macs,
        macs_of=macs_of,
        file_bytes=result.size_after.file_bytes if file_bytes is None else file_bytes,
        latencies=_latencies(sheet, measured) if sheet else (),
        not_measured=tuple(str(refusal) for refusal in sheet.refusals if refusal.model in (sheet.baseline, measured))
        if sheet
        else (),
        histogram=result.histogram,
        settings={
            key: value if isinstance(value, str) else json.dumps(value) for key, value in (settings or {}).items()
        },
        versions=dict(_versions() if versions is None else versions),
        machine=sheet.machine if sheet else this_machine(),
    )


def _what_was_done(result: Result) -> str:
    plan, masks = result.plan, result.masks
    if plan is not None:
        removed = sum(group.before - group.after for group in plan.groups)
        total = sum(group.before for group in plan.groups)
        groups = count_text(len(plan.groups), "group")
        return (
            f"{removed:,} of {total:,} channels and heads removed in {groups}; scope {plan.scope}, score {plan.score}."
        )
    if masks.layers:
        pattern = f", pattern {masks.pattern}" if masks.pattern else ""
        return (
            f"{masks.zeros:,} of {masks.weights:,} weights set to zero ({masks.sparsity:.1%}); "
            f"scope {masks.scope}, score {masks.score}{pattern}."
        )
    return "Trained; nothing was pruned."


def _layers_left(result: Result) -> tuple[LayerLeft, ...]:
    """Output channels where channels went, weights that are not zero where weights did."""
    if result.plan is None:
        masked = result.masks.layers.items()
        return tuple(
            LayerLeft(name.removesuffix(".weight"), layer.weights - layer.zeros, layer.weights)
            for name, layer in masked
        )
    layers = []
    for weight in find_weights(unwrap(result.model))[0]:
        axis = 1 if weight.input_dim == 0 else 0
        left = weight.tensor.shape[axis]
        cut = result.plan.tensors.get(weight.name)
        layers.append(LayerLeft(weight.name.removesuffix(".weight"), left, cut.shape[axis] if cut else left))
    return tuple(layers)


def _measured_name(sheet: Sheet, name: str) -> str:
    others = [model for model in sheet.footprints if model != sheet.baseline]
    if name in others:
        return name
    if len(others) != 1:
        raise UsageError(
            f"The sheet measures {', '.join(others) or 'one model only'}; give the name of this run's model."
        )
    return others[0]


def _latencies(sheet: Sheet, measured: str) -> tuple[Latency, ...]:
    return tuple(
        Latency(
            item.comparison.runtime,
            item.comparison.precision,
            item.comparison.threads,
            item.batch,
            item.comparison[sheet.baseline],
            item.comparison[measured],
            item.comparison.control,
            tuple(_or_nan(item.peak_megabytes[model]) for model in (sheet.baseline, measured)),
        )
        for item in sheet.measurements
        if measured in item.comparison.timings
    )


def _or_nan(number: float | None) -> float:
    return math.nan if number is None else number


def _versions() -> dict[str, str]:
    libraries = ("torch", "numpy", "accelerate", "safetensors")
    return {"secateur": __version__, "Python": python_version(), **{library: version(library) for library in libraries}}
