"""A hardware report in sections of sentences and tables. The console and the page show the same ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from secateur.bench import KINDS, MULTIPLES, TOLERANCE, Timing
from secateur.studies import (
    BATCH_FIRST,
    BLOCK,
    KERNELS,
    KERNELS_IN_FOURS,
    PARTS,
    SIDES,
    Ablation,
    FormatCurve,
    HardwareReport,
    NetworkCut,
    percent,
    span,
)


@dataclass(frozen=True)
class Table:
    title: str
    rows: Sequence[Sequence[str]]
    """The first is the head."""
    numbers: Sequence[int] = ()
    """The columns to align on the right."""


@dataclass(frozen=True)
class Section:
    title: str
    sentences: Sequence[str]
    tables: Sequence[Table] = ()


def hardware_sections(report: HardwareReport, narrow: bool) -> list[Section]:
    """Narrow tables fit 80 columns, and leave out the intervals that have no room."""
    return [
        Section(
            "1. Zeros anywhere in a weight",
            _about_formats(report),
            [
                _format_table("Time at 90 % zeros, × dense", report, _at_90),
                _format_table("Break-even: faster than dense from this share of zeros on", report, _break_even_text),
            ],
        ),
        Section("2. 2:4 and sparse tensor cores", _about_tensor_cores(report)),
        Section(
            "3. Channels removed",
            [*_about_layers(report), *_about_networks(report)],
            [_layer_table(report, narrow), _network_table(report, narrow)],
        ),
        Section("4. Which number of channels stays", _about_counts(report), [_count_table(report, narrow)]),
    ]


def _format_table(title: str, report: HardwareReport, cell: Callable[[FormatCurve], str]) -> Table:
    columns = list(dict.fromkeys((curve.size, curve.batch) for curve in report.formats))
    found = {(curve.format, curve.size, curve.batch): curve for curve in report.formats}
    rows = [["weight", *(f"{size}²" for size, _ in columns)], ["batch", *(str(batch) for _, batch in columns)]]
    for name in dict.fromkeys(curve.format for curve in report.formats):
        rows.append([name, *(cell(found[name, size, batch]) for size, batch in columns)])
    return Table(title, rows, range(1, len(columns) + 1))


def _at_90(curve: FormatCurve) -> str:
    point = curve.at(0.9)
    if point is None:
        return "–"
    return f"{point.timing.ratio:.2f}" if point.timing.ratio < 10 else f"{point.timing.ratio:.0f}"


def _layer_table(report: HardwareReport, narrow: bool) -> Table:
    rows = [["layer", "width", "runtime", *SIDES, "control"]]
    for cut in report.layers:
        cells = [_with_interval(timing, narrow) for timing in (*(cut.timings[side] for side in SIDES), cut.control)]
        rows.append([cut.kind, str(cut.width), cut.runtime, *cells])
    return Table("Half of a layer, × the whole layer", rows)


def _network_table(report: HardwareReport, narrow: bool) -> Table:
    versions = list(dict.fromkeys(cut.version for cut in report.networks))
    rows = [["network", "runtime", *versions, "control"]]
    for network, runtime in dict.fromkeys((cut.network, cut.runtime) for cut in report.networks):
        cuts = [cut for cut in report.networks if (cut.network, cut.runtime) == (network, runtime)]
        times = [f"{cut.timing.ratio:.2f}" if narrow else str(cut.timing) for cut in cuts]
        cells = [f"{time} ({cut.macs_ratio:.2f})" for time, cut in zip(times, cuts, strict=True)]
        rows.append([network, runtime, *cells, _with_interval(cuts[0].control, narrow)])
    return Table("Whole networks: time (and multiply-adds), × dense", rows)


def _count_table(report: HardwareReport, narrow: bool) -> Table:
    head = ["layer", "runtime", *("odd" if m == 1 else str(m) for m in MULTIPLES), "keep multiples of"]
    rows = [head if narrow else [*head, "control"]]
    for curve in report.counts:
        cells = [f"{penalty:.2f}" for penalty in curve.penalties.values()]
        control = [] if narrow else [str(curve.control)]
        rows.append([curve.kind, curve.runtime, *cells, str(curve.multiple_of), *control])
    title = "Cost of a multiply-add, × multiples of 32, by the largest divisor of the count"
    return Table(title, rows, range(2, len(MULTIPLES) + 3))


def _with_interval(timing: Timing, narrow: bool) -> str:
    """Where there is little room, half of the interval: the whole of it takes a third of a line."""
    return f"{timing.ratio:.2f} ±{(timing.high - timing.low) / 2:.2f}" if narrow else str(timing)


def about_measuring(report: HardwareReport) -> list[str]:
    controls = [
        *(point.control for curve in report.formats for point in curve.points),
        *(ablation.control for ablation in report.ablations),
        *(cut.control for cut in report.layers),
        *(cut.control for cut in report.networks),
        *(curve.control for curve in report.counts),
    ]
    off = [abs(control.ratio - 1) for control in controls]
    return [
        f"Measured {report.measured_at} in {report.seconds:.0f} s on {report.machine}.",
        "Everything ran in float32 on one thread, by CPU time, with its data in the cache as far as it fits. Ratios "
        "are between alternatives that took turns, with 95 % intervals; below 1 is faster.",
        f"The null control beside each, dense against itself, was off by {percent(median(off))} at the median and by "
        f"{percent(max(off))} at most.",
    ]


def _about_formats(report: HardwareReport) -> list[str]:
    sentences = {
        BATCH_FIRST: "F.linear, which is what a linear layer calls, with a CSR weight {faster}.",
        "CSR, W @ X": "The same weight as W @ X, with the batch last, {faster}. So the answer depends on the layout of "
        "the data, not only on the zeros.",
        "COO, W @ X": "COO {faster}.",
        "BSR, W @ X": f"BSR stores blocks of {BLOCK} × {BLOCK}. With zeros anywhere hardly a block is empty, and it "
        "{faster}.",
        "BSR, block zeros": "BSR with its zeros in whole blocks {faster}.",
        KERNELS: "A layer of secateur's sparse engine, which takes the data as F.linear does, {faster}.",
        KERNELS_IN_FOURS: "Such a layer with its zeros in blocks of 4 outputs × 1 input {faster}.",
    }
    by_format = {name: [curve for curve in report.formats if curve.format == name] for name in sentences}
    return [sentences[name].format(faster=_faster(curves)) for name, curves in by_format.items() if curves]


def about_time(ablation: Ablation) -> list[str]:
    bars = {bar.name: bar for bar in ablation.bars}
    dense, linear = bars["dense, F.linear"], bars["CSR, F.linear"]
    part = ablation.largest_part
    by_hand = bars["CSR, transposed"].seconds
    return [
        f"F.linear with this weight took {1e3 * linear.seconds:.2f} ms, {linear.seconds / dense.seconds:.2f} × dense. "
        f"{percent(linear.parts[part] / linear.seconds)} of it is {part}: {PARTS[part]}.",
        f"The multiplications that are left would take {percent(linear.parts['multiply'] / linear.seconds)} of it.",
        f"Transposing by hand around W @ X took {1e3 * by_hand:.2f} ms, {by_hand / dense.seconds:.2f} × dense.",
        "Each part is the difference of two products timed in turn, one of which has that work left out.",
    ]


def _about_tensor_cores(report: HardwareReport) -> list[str]:
    cores = report.tensor_cores
    if cores.missing:
        return [
            f"Not measured: {cores.missing}. 2:4 weights need a CUDA device of compute capability 8.0 or newer, and "
            "float16 or bfloat16; on anything else they are multiplied like dense ones."
        ]
    return [
        f"A 2:4 weight of {each.outputs} × {each.inputs} with {each.batch} rows took {each.timing} × dense in float16 "
        f"(null control {each.control})."
        for each in cores.measured
    ]


def _about_layers(report: HardwareReport) -> list[str]:
    one = [cut.timings[side].ratio for cut in report.layers for side in ("output side", "input side")]
    both = [cut.timings["both sides"].ratio for cut in report.layers]
    return [
        f"Half of one side takes {span(one)} of the time, with half of the multiply-adds; half of both sides "
        f"{span(both)}, with a quarter of them."
    ]


def _about_networks(report: HardwareReport) -> list[str]:
    lines = []
    for runtime in dict.fromkeys(cut.runtime for cut in report.networks):
        cuts = [cut for cut in report.networks if cut.runtime == runtime]
        worst = max(cuts, key=lambda cut: cut.timing.ratio - cut.macs_ratio)
        lines.append(
            f"In {runtime}, the time is at most {worst.timing.ratio - worst.macs_ratio:.2f} of the dense time above "
            f"what the multiply-adds say ({worst.network}, {worst.version})."
        )
    return [*lines, *report.notes]


def _about_counts(report: HardwareReport) -> list[str]:
    liked = {kind: report.multiple_of(kind) for kind in KINDS}
    keep = [f"{'any number' if m == 1 else f'multiples of {m}'} in a {KINDS[kind]}" for kind, m in liked.items()]
    lines = [
        f"Keep {', '.join(keep)}: the smallest multiples that cost at most {percent(TOLERANCE)} more for each "
        "multiply-add than the best, in every runtime."
    ]
    off = {kind: report.expected_ratio(kind, 64, 63) for kind in KINDS}
    worst = max(off, key=lambda kind: off[kind])
    if off[worst] > 1:
        lines.append(
            f"One channel less can take longer: a {KINDS[worst]} cut from 64 channels to 63 takes about "
            f"{off[worst]:.1f} × as long."
        )
    for runtime in dict.fromkeys(cut.runtime for cut in report.rounding):
        lines.append(_rounded([cut for cut in report.rounding if cut.runtime == runtime]))
    return lines


def _break_even_text(curve: FormatCurve) -> str:
    found = curve.break_even
    if found is None:
        return "never"
    return f"{'≤ ' if found == curve.points[0].sparsity else ''}{percent(found)}"


def product_text(ablation: Ablation) -> str:
    size = ablation.size
    return f"{size} × {size} weight, {percent(ablation.sparsity)} zeros, batch {ablation.batch}"


def _faster(curves: Sequence[FormatCurve]) -> str:
    found = [each for curve in curves if (each := curve.break_even) is not None]
    never = [curve for curve in curves if curve.break_even is None]
    most = percent(max(point.sparsity for curve in curves for point in curve.points))
    if not found:
        return f"is never faster than dense, up to {most} zeros"
    low, high = f"{100 * min(found):.0f}", f"{100 * max(found):.0f}"
    text = f"is faster than dense from {low if low == high else f'{low}–{high}'} % zeros on"
    if never:
        where = " and ".join(f"{curve.size} × {curve.size} with batch {curve.batch}" for curve in never)
        text += f", but never up to {most} for {where}"
    return text


def _rounded(cuts: Sequence[NetworkCut]) -> str:
    versions = ", ".join(f"{cut.timing} × dense with {cut.version} ({cut.macs_ratio:.2f} of the MACs)" for cut in cuts)
    first = cuts[0]
    return (
        f"{first.network} with {percent(first.kept)} of its channels in {first.runtime}: {versions}; null control "
        f"{first.control}."
    )
