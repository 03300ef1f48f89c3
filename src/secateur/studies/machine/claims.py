"""What people say about pruned models, judged by the numbers of one machine: held, did not hold, or cannot tell.

Pure functions of measurements. A ratio counts as slower or faster only beyond the noise, and as within limits only with
its whole 95 % interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from secateur.bench import KINDS, TOLERANCE, CountCurve, Timing
from secateur.studies.machine.sparse_formats import BATCH_FIRST, IN_BLOCKS, KERNELS, FormatCurve, SparsityPoint
from secateur.studies.machine.structured import LayerCut, NetworkCut
from secateur.studies.machine.tensor_cores import TensorCores

CAN_BE_SLOWER = "A 90 % sparse matrix multiplication can run slower than dense"
ONLY_TENSOR_CORES = "Only sparse tensor cores handle it"
HALF = "50 % of the channels removed is about 50 % faster"
IN_ONE_LAYER = f"{HALF}: in one layer"
COUNTS_MATTER = "It matters how many channels are kept"

JUDGED_SPARSITY = 0.9
ABOUT_HALF = (0.4, 0.6)
"""Ratios of time that "about 50 % faster" may mean."""
ROUGHLY = 0.1
"""How far from a straight line, as a share of the dense time, is still "roughly linear"."""

VERDICTS = {True: "held", False: "did not hold", None: "cannot tell"}


@dataclass(frozen=True)
class Claim:
    text: str
    held: bool | None
    because: str

    @property
    def verdict(self) -> str:
        return VERDICTS[self.held]

    @property
    def explanation(self) -> str:
        return self.because + (" Measure again when the machine is quiet." if self.held is None else "")

    def __str__(self) -> str:
        return f"“{self.text}”: {self.verdict.upper()}. {self.explanation}"


def sparse_can_be_slower(curves: Sequence[FormatCurve]) -> Claim:
    at = [(curve, point) for curve in curves if (point := curve.at(JUDGED_SPARSITY))]
    scattered = [(curve, point) for curve, point in at if _is_scattered(curve)]
    slower = [point for _, point in scattered if point.slower]
    held = True if slower else (False if scattered and all(point.faster for _, point in scattered) else None)
    ways = {"through F.linear": BATCH_FIRST, "as W @ X": "CSR, W @ X"}
    took = {way: [point.timing.ratio for curve, point in at if curve.format == name] for way, name in ways.items()}
    spans = " and ".join(f"{span(ratios)} × dense {way}" for way, ratios in took.items() if ratios)
    because = (
        f"A CSR weight with {percent(JUDGED_SPARSITY)} zeros took {spans}: the answer depends on the layout, on the "
        "size and on the batch."
        if spans
        else "torch cannot multiply with a CSR weight here."
    )
    if own := [point.timing.ratio for curve, point in at if curve.format == KERNELS]:
        because += f" With secateur's kernels it took {span(own)} × dense."
    return Claim(CAN_BE_SLOWER, held, because)


def only_tensor_cores(curves: Sequence[FormatCurve], tensor_cores: TensorCores) -> Claim:
    points = [(curve, point) for curve in curves if _is_scattered(curve) for point in curve.points]
    faster = [(curve, point) for curve, point in points if point.faster]
    here = f"Without them ({tensor_cores.missing})" if tensor_cores.missing else "On the processor, without them"
    if faster:
        best = min((each for each in faster if each[1].sparsity <= JUDGED_SPARSITY), key=_ratio, default=None)
        curve, point = best or min(faster, key=lambda each: (each[1].sparsity, _ratio(each)))
        held: bool | None = False
        because = (
            f"{here}, {curve.format} ran in {point.timing} of the time of dense at {percent(point.sparsity)} zeros "
            f"({curve.size} × {curve.size}, batch {curve.batch}; null control {point.control})."
        )
    else:
        held = True if points and all(point.slower for _, point in points) else None
        most = max((point.sparsity for _, point in points), default=0.0)
        because = f"{here}, no format was faster than dense at any size, up to {percent(most)} zeros."
    return Claim(ONLY_TENSOR_CORES, held, because)


def half_the_channels(layers: Sequence[LayerCut], networks: Sequence[NetworkCut]) -> tuple[Claim, Claim]:
    one_side = [cut.timings[side] for cut in layers for side in ("output side", "input side")]
    both = [cut.timings["both sides"].ratio for cut in layers]
    halves = [cut for cut in networks if cut.kept == 0.5]
    whole = [cut.timing for cut in halves]
    return (
        Claim(
            IN_ONE_LAYER,
            _together(_within(timing, ABOUT_HALF) for timing in one_side),
            f"Without half of its inputs or outputs, a layer takes {span(t.ratio for t in one_side)} of the time; "
            f"without half of both, as when its neighbours are cut as well, {span(both)}.",
        ),
        Claim(
            f"{HALF}: in whole networks",
            _together(_within(timing, ABOUT_HALF) for timing in whole),
            f"Without half of its channels, a network takes {span(t.ratio for t in whole)} of the time, with "
            f"{span(cut.macs_ratio for cut in halves)} of the MACs{_extremes(halves)}.",
        ),
    )


def linear_speedup(networks: Sequence[NetworkCut]) -> tuple[Claim, Claim]:
    def near(cuts: Sequence[NetworkCut], line: Callable[[NetworkCut], float]) -> bool | None:
        return _together(_within(cut.timing, (line(cut) - ROUGHLY, line(cut) + ROUGHLY)) for cut in cuts)

    def judged(what: str, line: Callable[[NetworkCut], float]) -> Claim:
        text = f"Speed-up is roughly linear in the {what} removed"
        if not networks:
            return Claim(text, None, "No network was measured.")
        runtimes = {cut.runtime: [c for c in networks if c.runtime == cut.runtime] for cut in networks}
        each = "; ".join(f"in {name}: {VERDICTS[near(cuts, line)]}" for name, cuts in runtimes.items())
        off = max(networks, key=lambda cut: abs(cut.timing.ratio - line(cut)))
        worst = (
            f"the furthest off, {off.network} in {off.runtime} with {percent(off.kept)} of its channels, has "
            f"{line(off):.2f} of the {what} and takes {off.timing} of the time"
        )
        return Claim(text, near(networks, line), f"Within ±{percent(ROUGHLY)} of the dense time, {each}; {worst}.")

    return judged("channels", lambda cut: cut.kept), judged("MACs", lambda cut: cut.macs_ratio)


def counts_matter(curves: Sequence[CountCurve]) -> Claim:
    """Not a saying, but what a cut to odd numbers runs into."""
    noise = {curve: abs(curve.control.ratio - 1) for curve in curves}
    picky = [
        each for each in curves if each.multiple_of > 1 and max(each.penalties.values()) > 1 + TOLERANCE + noise[each]
    ]
    held = True if picky else (False if curves and max(noise.values()) < TOLERANCE else None)
    if picky:
        worst = max(picky, key=lambda curve: max(curve.penalties.values()))
        because = (
            f"A {KINDS[worst.kind]} in {worst.runtime} costs up to {max(worst.penalties.values()):.2f} × as much per "
            f"MAC when its channels are not a multiple of {worst.multiple_of}."
        )
    elif held is False:
        because = f"Rounding the counts would save less than {percent(TOLERANCE)} per MAC."
    else:
        because = f"No penalty is beyond the noise, and the noise floor is above {percent(TOLERANCE)}."
    return Claim(COUNTS_MATTER, held, because)


def span(values: Iterable[float]) -> str:
    numbers = sorted(values)
    if not numbers:
        return "–"
    low, high = f"{numbers[0]:.2f}", f"{numbers[-1]:.2f}"
    return low if low == high else f"{low}–{high}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _extremes(cuts: Sequence[NetworkCut]) -> str:
    if len(cuts) < 2:
        return ""
    best, worst = min(cuts, key=lambda cut: cut.timing.ratio), max(cuts, key=lambda cut: cut.timing.ratio)
    return f"; least for {best.network} in {best.runtime}, most for {worst.network} in {worst.runtime}"


def _is_scattered(curve: FormatCurve) -> bool:
    return curve.format not in IN_BLOCKS


def _ratio(each: tuple[FormatCurve, SparsityPoint]) -> float:
    return each[1].timing.ratio


def _within(timing: Timing, limits: tuple[float, float]) -> bool | None:
    low, high = limits
    if low <= timing.low and timing.high <= high:
        return True
    return False if timing.high < low or timing.low > high else None


def _together(verdicts: Iterable[bool | None]) -> bool | None:
    """One that did not hold refutes a claim; it holds only if all did."""
    seen = list(verdicts)
    if False in seen:
        return False
    return True if seen and None not in seen else None
