"""What several runs can be compared by: milliseconds, each in its best runtime, or else what can be counted.

The batch, the threads and the machine are the same for all. The runtime is part of how a model is deployed, so each may
have its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from secateur.base import UsageError, did_you_mean, milliseconds
from secateur.bench import Measurement
from secateur.pages.run_report import RunReport

_Measured = Mapping[str, Sequence[Measurement]]
"""By run, all that was measured under one set of conditions."""


@dataclass(frozen=True)
class Cost:
    """Of a model, with its 95 % interval; a count has one of no width."""

    low: float
    middle: float
    high: float
    of_dense: str
    """As a multiple of the dense model's in the same place."""
    latency: str = ""
    runtime: str = ""
    precision: str = ""


@dataclass(frozen=True)
class CommonCost:
    title: str
    """To go on after "accuracy against"."""
    axis: str
    explanation: str
    runs: Mapping[str, Cost]
    dense: Mapping[str, Cost]
    """By the name of the first run that began with it."""
    tried_in: Mapping[str, Collection[str]]
    """The runtimes of each run: those that it was measured in, and those that cannot run it."""
    everywhere: Sequence[Sequence[str]] = ()
    """The latencies in all runtimes, as a table with a head; empty for what was counted."""


def common_cost(reports: Mapping[str, RunReport], runtime: str | None) -> CommonCost:
    """The latency, in `runtime` where one is given; where not all have one, MACs, and where nobody counted them,
    parameters."""
    measured = {name: _by_conditions(report, runtime) for name, report in reports.items()}
    for conditions in next(iter(measured.values())):
        if all(conditions in own for own in measured.values()):
            return _latencies(reports, {name: own[conditions] for name, own in measured.items()}, runtime)
    if runtime is not None:
        raise _not_measured_in(runtime, reports)
    macs = {name: ratio for name, report in reports.items() if (ratio := report.macs_ratio) is not None}
    if macs.keys() == reports.keys():
        return _counts("MACs", reports, macs)
    sizes = {name: each.size_after.parameters / max(each.size_before.parameters, 1) for name, each in reports.items()}
    return _counts("parameters", reports, sizes)


def _by_conditions(report: RunReport, runtime: str | None) -> dict[tuple[int, str, str], list[Measurement]]:
    """What was measured with the same batch and threads on the same machine, the headline's first."""
    found: dict[tuple[int, str, str], list[Measurement]] = {}
    for item in sorted(report.measurements, key=lambda item: item is not report.headline):
        if runtime in (None, item.comparison.runtime):
            conditions = item.batch, item.comparison.place, item.comparison.machine.name
            found.setdefault(conditions, []).append(item)
    return found


def _latencies(reports: Mapping[str, RunReport], measured: _Measured, runtime: str | None) -> CommonCost:
    runs = {name: _fastest(items, reports[name].measured_name) for name, items in measured.items()}
    dense = {name: _fastest(items) for name, items in _of_dense_models(reports, measured).items()}
    tried_in = {
        name: {item.comparison.runtime for item in items} | {refusal.runtime for refusal in reports[name].refusals}
        for name, items in measured.items()
    }
    item = next(iter(measured.values()))[0]
    batch, place = f"batch {item.batch}", item.comparison.place
    places = {cost.runtime for cost in (*runs.values(), *dense.values())}
    return CommonCost(
        f"latency in {places.pop()}, {batch}" if len(places) == 1 else f"latency, {batch}, each in its best runtime",
        "latency, ms",
        f"Latency is the time of one call with {batch} on {place}, each model in "
        f"{runtime or 'the fastest runtime that it was measured in'}.",
        runs,
        dense,
        tried_in,
        _everywhere(reports, measured),
    )


def _fastest(items: Sequence[Measurement], model: str | None = None) -> Cost:
    """Of the model by that name, or of the dense one."""
    costs = [_latency(item, model or item.comparison.baseline) for item in items]
    return min(costs, key=lambda cost: cost.middle)


def _latency(item: Measurement, model: str) -> Cost:
    timing, comparison = item.comparison[model], item.comparison
    low, high = (timing.low / timing.ratio, timing.high / timing.ratio) if model != comparison.baseline else (1, 1)
    middle = 1e3 * timing.seconds
    of_dense = str(timing) if model != comparison.baseline else "1"
    place = comparison.runtime, comparison.precision
    return Cost(low * middle, middle, high * middle, of_dense, milliseconds(timing.seconds), *place)


def _dense_models(reports: Mapping[str, RunReport]) -> dict[str, list[str]]:
    """The runs that began with the same model, as far as reports can tell, by the name of the first."""
    found: dict[tuple[float, int], list[str]] = {}
    for name, report in reports.items():
        found.setdefault((report.before, report.size_before.parameters), []).append(name)
    return {members[0]: members for members in found.values()}


def _of_dense_models(reports: Mapping[str, RunReport], measured: _Measured) -> _Measured:
    return {
        first: [item for name in members for item in measured[name]]
        for first, members in _dense_models(reports).items()
    }


def _everywhere(reports: Mapping[str, RunReport], measured: _Measured) -> list[list[str]]:
    runtimes = list(dict.fromkeys(item.comparison.runtime for items in measured.values() for item in items))

    def row(title: str, model: str | None, items: Sequence[Measurement]) -> list[str]:
        own = [[item for item in items if item.comparison.runtime == runtime] for runtime in runtimes]
        return [title, *(_fastest(found, model).latency if found else "–" for found in own)]

    dense = [row("dense", None, items) for items in _of_dense_models(reports, measured).values()]
    runs = [row(name, reports[name].measured_name, items) for name, items in measured.items()]
    return [["", *runtimes], *dense, *runs]


def _counts(what: str, reports: Mapping[str, RunReport], ratios: Mapping[str, float]) -> CommonCost:
    return CommonCost(
        what,
        f"{what}, × dense",
        f"{what[0].upper()}{what[1:]} are relative to each run's own dense model, and say little about time. The runs "
        "have no latency with the same batch and threads on the same machine; `secateur measure` with the folders of "
        "all of them adds it.",
        {name: Cost(ratio, ratio, ratio, f"{ratio:.2f}") for name, ratio in ratios.items()},
        {name: Cost(1, 1, 1, "1") for name in _dense_models(reports)},
        {name: [""] for name in reports},
    )


def _not_measured_in(runtime: str, reports: Mapping[str, RunReport]) -> UsageError:
    known = {name: {item.comparison.runtime for item in report.measurements} for name, report in reports.items()}
    lacking = [name for name, own in known.items() if runtime not in own]
    if not lacking:
        return UsageError(
            f"In {runtime} the runs were measured with different batches or threads, or on different machines; "
            f"give the folders of all of them to `secateur measure --runtime {runtime}`."
        )
    otherwise, measured = f"`secateur measure --runtime {runtime}` adds it.", set().union(*known.values())
    hint = otherwise if runtime in measured else did_you_mean(runtime, measured, otherwise)
    return UsageError(f"There is no latency in {runtime} of {', '.join(lacking)}; {hint}")
