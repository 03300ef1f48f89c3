"""Gathers what the page of a run shows, from what `prune` returned or from the folder that it wrote."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from secateur.base import SecateurError, SecateurWarning, UsageError, count_text, from_json
from secateur.bench import Measurement, Sheet, this_machine
from secateur.checkpoint import read_checkpoint, versions_now
from secateur.loop import History, Result, read_history
from secateur.pages.run_report import RunReport
from secateur.plans import Masks, Plan

T = TypeVar("T")


def report_of(result: Result, name: str, settings: Mapping[str, Any] | None = None) -> RunReport:
    own = {"layers": result.left_per_layer, "file_bytes": result.size_after.file_bytes, "versions": versions_now()}
    return _gather(result, result.plan, result.masks, settings or {}, name=name, **own)


def report_of_run(folder: Path, name: str, settings: Mapping[str, Any] | None = None) -> RunReport:
    """Of a finished run, without its model; `settings` are by default those that the run was started with."""
    checkpoint = read_checkpoint(folder)
    try:
        return _gather(
            read_history(checkpoint.metrics),
            checkpoint.plan,
            checkpoint.masks or Masks({}),
            from_json(dict[str, Any], checkpoint.settings, "settings") if settings is None else settings,
            layers=from_json(
                dict[str, tuple[int, int]], checkpoint.metrics.get("left_per_layer", {}), "left_per_layer"
            ),
            name=name,
            file_bytes=checkpoint.file_bytes,
            versions=checkpoint.versions,
        )
    except ValueError as error:
        raise SecateurError(f"{folder} holds no run that can be read ({error}); make the run again.") from error


def with_sheet(report: RunReport, sheet: Sheet) -> RunReport:
    """The run's name tells which of several models on the sheet is its own. What was measured before stays, apart from
    what the sheet has in the same runtime on the same device with the same batch and threads."""
    others = [model for model in sheet.footprints if model != sheet.baseline]
    if report.name not in others and len(others) != 1:
        raise UsageError(
            f"The sheet measures {', '.join(others) or 'one model only'}; give the name of this run's model."
        )
    own = report.name if report.name in others else others[0]
    newer = _only(sheet, {sheet.baseline: sheet.baseline, own: own})
    return replace(report, sheet=_joined(report, report.sheet, newer) if report.sheet else newer)


def _joined(report: RunReport, earlier: Sheet, newer: Sheet) -> Sheet:
    was, now = (
        [(footprint.macs, footprint.size.parameters) for footprint in sheet.footprints.values()]
        for sheet in (earlier, newer)
    )
    if was != now:
        warnings.warn(
            f"The latencies that {report.name} had are dropped: they are of other example inputs, or of another model "
            f"({was[0][0]:,} MACs dense and {was[1][0]:,} pruned, now {now[0][0]:,} and {now[1][0]:,}).",
            SecateurWarning,
            stacklevel=4,
        )
        return newer
    kept = _only(earlier, dict(zip(earlier.footprints, newer.footprints, strict=True)))
    measurements = {_conditions(item): item for item in (*kept.measurements, *newer.measurements)}
    tried = {item.comparison.runtime for item in newer.measurements} | {each.runtime for each in newer.refusals}
    refusals = [each for each in kept.refusals if each.runtime not in tried]
    return replace(newer, measurements=tuple(measurements.values()), refusals=(*refusals, *newer.refusals))


def _conditions(item: Measurement) -> tuple[str, int, int, str]:
    return item.comparison.runtime, item.batch, item.comparison.threads, item.comparison.device


def _gather(history: History, plan: Plan | None, masks: Masks, settings: Mapping[str, Any], **rest: Any) -> RunReport:
    return RunReport(
        **{field.name: getattr(history, field.name) for field in fields(History)},
        cut=_what_was_done(plan, masks),
        target=str(plan.outcome) if plan and plan.outcome else "",
        unit="channels" if plan else "weights",
        groups=plan.groups if plan else (),
        left_alone=plan.left_alone if plan else masks.left_alone,
        planned_macs=plan.macs if plan else None,
        sheet=None,
        settings={key: value if isinstance(value, str) else json.dumps(value) for key, value in settings.items()},
        machine=this_machine(),
        **rest,
    )


def _what_was_done(plan: Plan | None, masks: Masks) -> str:
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


def _only(sheet: Sheet, names: Mapping[str, str]) -> Sheet:
    """The sheet without the models of other runs; `names` gives the dense model and the run's own their new ones."""
    own, baseline = list(names)[1], names[sheet.baseline]

    def theirs(by_model: Mapping[str, T]) -> dict[str, T]:
        return {new: by_model[old] for old, new in names.items() if old in by_model}

    def of_them(item: Measurement) -> Measurement:
        timings, notes = theirs(item.comparison.timings), theirs(item.comparison.notes)
        comparison = replace(item.comparison, baseline=baseline, timings=timings, notes=notes)
        return replace(item, comparison=comparison, peak_megabytes=theirs(item.peak_megabytes))

    return replace(
        sheet,
        baseline=baseline,
        footprints=theirs(sheet.footprints),
        measurements=tuple(of_them(item) for item in sheet.measurements if own in item.comparison.timings),
        refusals=tuple(replace(each, model=names[each.model]) for each in sheet.refusals if each.model in names),
    )
