"""The page of one run: what the cut bought and what it cost, first in numbers, then in charts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from secateur.base import byte_text, metric_text, milliseconds, short_count, threads_text
from secateur.pages.group_drawing import draw_groups
from secateur.pages.page import chart, details, paragraphs, save_page, table
from secateur.pages.run_charts import accuracy_chart, histogram_chart, latency_chart, layer_chart
from secateur.pages.run_report import Latency, RunReport

__all__ = ["save_run_page"]

MANY_LAYERS = 24
"""From here on the bars of the layers scroll in a box of their own."""
_ABOUT_GROUPS = (
    "Layers of a group lose the same channels together. The outline is as wide as the group was, the filled part as it "
    "is now; heads have a scale of their own. A line leads from each group down to those that it feeds. Hatched layers "
    "were left alone."
)
_ABOUT_LATENCY = (
    "The models took turns. The null control is the dense model against its own copy: what the measurement makes of no "
    "difference at all. A difference counts only outside its interval."
)


def save_run_page(report: RunReport, path: str | Path) -> None:
    """One file that needs no network. What was not measured is left out, with the command that adds it."""
    body = [
        f"<h1>{escape(report.name)}</h1>",
        f'<p class="quiet">{escape(report.cut)} {escape(report.target)}</p>',
        f'<p class="verdict{"" if report.recovered else " failed"}">{escape(report.verdict)}</p>',
        f'<ul class="cards">{"".join(_cards(report))}</ul>',
        *_accuracy(report),
        *_layers(report),
        *_groups(report),
        *_latency(report),
        *_histogram(report),
        *_circumstances(report),
        *_loading(report),
    ]
    save_page(path, f"{report.name} – secateur", body)


def _cards(report: RunReport) -> list[str]:
    return [_metric_card(report), _latency_card(report), _size_card(report), _macs_card(report)]


def _card(title: str, before: str, after: str, notes: list[str], failed: bool = False) -> str:
    number, _, unit = before.partition(" ")
    if unit and after.endswith(f" {unit}"):
        before = number  # once is enough
    change = f"{escape(before)} → " if before else ""
    mark = ' class="failed"' if failed else ""
    big = f'<p class="big">{change}<b{mark}>{escape(after)}</b></p>'
    return f"<li><h2>{escape(title)}</h2>{big}{paragraphs(notes)}</li>"


def _metric_card(report: RunReport) -> str:
    name, before, after = report.metric_name, report.dense.metric, report.final.metric
    if not report.pruned:
        return _card(name, "", metric_text(name, after), ["Nothing was pruned."])
    lost, allowed, unit = before - after, report.tolerance, ""
    if name == "accuracy":
        lost, allowed, unit = 100 * lost, 100 * allowed, " points"
    change = f"{abs(lost):.3g}{unit} {'lost' if lost > 0 else 'gained'}" if lost else "Nothing lost"
    verdict = "recovered" if report.recovered else "did NOT recover"
    notes = [f"{change}: {verdict}, {allowed:g}{unit} are allowed."]
    cuts = [record for record in report.records if record.phase == "cut"]
    if cuts:
        notes.append(f"Right after the {'last ' if len(cuts) > 1 else ''}cut: {metric_text(name, cuts[-1].metric)}.")
    notes += _metric_intervals(report)
    return _card(name, metric_text(name, before), metric_text(name, after), notes, failed=not report.recovered)


def _metric_intervals(report: RunReport) -> list[str]:
    intervals = [record.interval for record in (report.dense, report.final)]
    texts = ["–".join(metric_text(report.metric_name, end) for end in ends) for ends in intervals if ends]
    return [f"95 % intervals: {' → '.join(texts)}, of {report.final.counted:,} predictions."] if texts else []


def _latency_card(report: RunReport) -> str:
    if not report.latencies:
        return _card("Latency", "", "–", [_how_to_measure(report)])
    first = report.latencies[0]
    notes = [
        f"{first.pruned} × dense: {_speed(first)}.",
        f"Null control: {first.control}.",
        f"{first.where}, {first.precision}, {threads_text(first.threads)}; 95 % intervals.",
    ]
    return _card("Latency", milliseconds(first.dense.seconds), milliseconds(first.pruned.seconds), notes)


def _size_card(report: RunReport) -> str:
    before, after = report.dense.size, report.final.size
    notes = [f"{before.parameters:,} → {after.parameters:,} parameters."]
    if after.nonzeros != after.parameters:
        notes.append(f"{before.nonzeros:,} → {after.nonzeros:,} of them not zero.")
        notes.append(f"A plain file stores zeros, too, and has {byte_text(after.file_bytes)}.")
    return _card("File", byte_text(before.file_bytes), byte_text(report.file_bytes), notes)


def _macs_card(report: RunReport) -> str:
    if not report.macs:
        zeros = "Zeros leave them as they were. " if report.pruned else ""
        return _card("MACs", "", "–", [f"{zeros}{_how_to_measure(report)}"])
    before, after = report.macs
    left = f"{after / before:.1%} left" if before else "None"
    notes = [f"{left}; of {report.macs_of}, 1 for each multiply-add."]
    if report.unit == "weights":
        notes.append("Dense runtimes multiply zeros like any number.")
    return _card("MACs", short_count(before), short_count(after), notes)


def _accuracy(report: RunReport) -> list[str]:
    rows = [
        [
            record.stop,
            metric_text(report.metric_name, record.metric),
            f"{record.size.parameters:,}",
            f"{record.sparsity:.1%}",
            f"{record.seconds:.1f}",
        ]
        for record in report.records
    ]
    head = ["stop", report.metric_name, "parameters", "zeros", "seconds"]
    title = f"{report.metric_name.capitalize()} through train, cut and recovery"
    band = f"Dotted: the dense model. In the shaded band, {report.tolerance:g} wide, a model counts as recovered."
    return [
        _h2(title),
        paragraphs([band] if report.pruned else []),
        chart(accuracy_chart(report)),
        details("All stops", table(head, rows, right=(1, 2, 3, 4))),
    ]


def _layers(report: RunReport) -> list[str]:
    if not report.layers:
        return []
    what = "Output channels kept" if report.unit == "channels" else "Zeros"
    drawn = chart(layer_chart(report))
    if len(report.layers) > MANY_LAYERS:
        drawn = f'<div class="scroll" tabindex="0">{drawn}</div>'
    rows = [[item.name, f"{item.left:,}", f"{item.total:,}", f"{item.left / item.total:.1%}"] for item in report.layers]
    numbers = table(["layer", f"{report.unit} left", "of", "share"], rows, right=(1, 2, 3))
    return [_h2(f"{what}, layer by layer"), drawn, details("All layers", numbers)]


def _groups(report: RunReport) -> list[str]:
    if not report.groups:
        return []
    rows = [
        [
            group.name,
            group.kind,
            f"{group.before:,}",
            f"{group.after:,}",
            f"−{group.parameters:,}",
            f"−{group.macs:,}",
            ", ".join(group.layers),
        ]
        for group in report.groups
    ]
    head = ["group", "kind", "before", "after", "parameters", "MACs", "layers it couples"]
    alone = [[item.name, item.reason] for item in report.left_alone]
    return [
        _h2("The model as its coupled groups"),
        paragraphs([_ABOUT_GROUPS]),
        draw_groups(report.groups, report.left_alone),
        details("All groups", table(head, rows, right=(2, 3, 4, 5))),
        details("Layers left alone, and why", table(["layer", "reason"], alone)) if alone else "",
    ]


def _latency(report: RunReport) -> list[str]:
    if not report.latencies:
        return [_h2("Latency"), paragraphs([*report.not_measured, _how_to_measure(report)])]
    rows = []
    for item in report.latencies:
        for name, timing, peak in zip(("dense", "pruned"), (item.dense, item.pruned), item.peak_megabytes, strict=True):
            rows.append(
                [
                    item.where if name == "dense" else "",
                    name,
                    f"{1e3 * timing.median:.3f}",
                    f"{1e3 * timing.p99:.3f}",
                    f"{item.batch / timing.median:,.0f}",
                    "–" if math.isnan(peak) else f"{peak:.1f}",
                    "1" if name == "dense" else str(timing),
                    f"{item.precision}, {threads_text(item.threads)}" if name == "dense" else _speed(item),
                ]
            )
        rows.append(["", "null control", "", "", "", "", str(item.control), ""])
    head = ["", "", "median ms", "p99 ms", "per second", "peak MB", "× dense [95 %]", ""]
    return [
        _h2("Latency by runtime and batch"),
        paragraphs([_ABOUT_LATENCY]),
        chart(latency_chart(report)),
        details("Medians, 99th percentiles and throughput", table(head, rows, right=(2, 3, 4, 5, 6))),
        paragraphs(report.not_measured),
    ]


def _histogram(report: RunReport) -> list[str]:
    histogram = report.histogram
    title = _h2("The weights, and which of them went")
    if histogram is None:
        missing = "The magnitudes were not counted; `secateur prune` counts them when it cuts."
        return [title, paragraphs([missing])] if report.pruned else []
    removed, total = sum(histogram.removed), sum(histogram.removed) + sum(histogram.kept)
    sentence = histogram.no_threshold or f"All weights below {histogram.threshold:.3g} went."
    bounds = zip(histogram.edges, histogram.edges[1:], histogram.kept, histogram.removed, strict=False)
    rows = [[f"{low:.3g}", f"{high:.3g}", f"{kept:,}", f"{gone:,}"] for low, high, kept, gone in bounds if kept or gone]
    return [
        title,
        paragraphs(
            [f"As the last cut found them. {removed:,} of {total:,} ({removed / max(total, 1):.1%}) went. {sentence}"]
        ),
        chart(histogram_chart(histogram)),
        details("All bins", table(["from", "to", "kept", "removed"], rows, right=(0, 1, 2, 3))),
    ]


def _circumstances(report: RunReport) -> list[str]:
    machine = [
        ["processor", f"{report.machine.cpu} ({report.machine.instructions}), {report.machine.cores} cores"],
        ["GPU", report.machine.gpu],
        ["frequency governor", report.machine.governor],
        ["load at the time", f"{report.machine.load:.1f}"],
        ["system", f"{report.machine.system}, Python {report.machine.python}, torch {report.machine.torch}"],
    ]
    parts: dict[str, Iterable[Sequence[str]]] = {
        "Settings": report.settings.items(),
        "Versions": report.versions.items(),
        "Hardware": machine,
    }
    tables = [table([name, ""], rows) for name, rows in parts.items() if rows]
    return [_h2("Settings, versions and hardware"), f'<div class="settings">{"".join(tables)}</div>']


def _loading(report: RunReport) -> list[str]:
    code = (
        "import secateur\n"
        f"from {_module(report.settings.get('task', ''))} import model  # builds the dense model\n\n"
        f"pruned = secateur.load({json.dumps(report.name)}, model)  # the folder of this page\n"
    )
    return [_h2("Load the result"), f'<pre tabindex="0"><code>{escape(code)}</code></pre>']


def _module(task: str) -> str:
    """What to import a task file as."""
    name = Path(task).stem if task.endswith(".py") else task
    return name if all(part.isidentifier() for part in name.split(".")) else "my_task"


def _h2(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def _how_to_measure(report: RunReport) -> str:
    return f"Not measured; `secateur measure {report.name}` adds it."


def _speed(latency: Latency) -> str:
    return latency.pruned.in_words(latency.control)
