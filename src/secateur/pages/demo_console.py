"""The demo's outcome as a table and a few sentences. Every number and every verdict comes from the run it reports."""

from __future__ import annotations

from rich.console import Console

from secateur.bench import Timing
from secateur.loop import Result
from secateur.pages.consoles import as_table
from secateur.pages.printed_lines import print_lines
from secateur.studies import LATENCY_BATCH, SHARE, Demo, Version

_HEAD = (
    "\nversion|acc.\nbefore|right\nafter|re-\npaired|re-\ncovered|param-\neters|non-\nzeros|file\nMB|mega-\nMACs|"
    "ms a\nbatch|ratio"
).split("|")  # eleven columns fit the 80 of a plain terminal
LOSS_RULE = (5.0, 15.0)
"""Points of accuracy that a cut is said to cost right away."""
SHORT_RULE = 2.0
"""Points that the model is said to stay short of after 10–20 % of the original epochs, at most."""


def print_demo(demo: Demo, console: Console) -> None:
    epochs = f"{demo.epochs:g} epoch{'' if demo.epochs == 1 else 's'}"
    lines = [
        f"Accuracy in % on {demo.test_images:,} test images; trained on {demo.train_images:,} for {epochs}, fine-tuned "
        f"for {SHARE} of that, seed {demo.seed}. MACs are for one image; zeros are multiplied, too. Latency is eager "
        f"PyTorch in float32, one thread, batch {LATENCY_BATCH}; the null control (dense against its own copy) "
        f"measured {demo.control} × dense.",
        "",
        f"Did the rule of thumb hold here? (5–15 points lost at the cut, 1–2 points short after {SHARE} of the epochs)",
        *(f"- {version.name}: {rule_of_thumb(version.result)}" for version in demo.versions[1:]),
        "",
        "Is it faster here?",
        *(
            f"- {version.name}: {speed_verdict(version.latency, demo.control, zeros=version.result.plan is None)}"
            for version in demo.versions[1:]
        ),
    ]
    console.print(as_table([_HEAD, *(_row(version) for version in demo.versions)], range(1, len(_HEAD))))
    print_lines(console, ["", *lines])


def rule_of_thumb(result: Result) -> str:
    """Both halves of the rule, each held or not, with this run's numbers."""
    if result.right_after is None:
        return "not tested: the schedule has no single cut."
    lost = 100 * (result.before - result.right_after)
    short = 100 * (result.before - result.after)
    low, high = LOSS_RULE
    first = "held" if low <= lost <= high else "did not hold, it lost " + ("more" if lost > high else "less")
    second = "held" if short <= SHORT_RULE else "did not hold, the model did NOT recover"
    ended = f"{short:.1f} points short" if short > 0 else f"{-short:.1f} points above the dense model"
    return f"{lost:.1f} points lost at the cut ({first}){_given_back(result)}; ended {ended} ({second})."


def _given_back(result: Result) -> str:
    """What the repair did, which the rule of thumb knows nothing of."""
    if result.repaired is None:
        return ""
    left = 100 * (result.before - result.repaired)
    return f", {left:.1f} after the repair" if left > 0 else f", {-left:.1f} above the dense model after the repair"


def speed_verdict(latency: Timing, control: Timing, zeros: bool = True) -> str:
    verdict = latency.verdict(control)
    answer = {"faster": "yes", "too noisy": "unclear"}.get(verdict, "no")
    why = " Dense kernels multiply the zeros, too." if zeros and verdict == "no different" else ""
    return f"{answer}: {latency} × dense, {latency.in_words(control)}.{why}"


def _percent(accuracy: float | None) -> str:
    return "–" if accuracy is None else f"{100 * accuracy:.1f}"


def _row(version: Version) -> tuple[str, ...]:
    result, size, dense = version.result, version.result.size_after, not version.result.pruned
    return (
        version.name,
        f"{100 * result.before:.1f}",
        _percent(result.right_after),
        _percent(result.repaired),
        "–" if dense else f"{100 * result.after:.1f}",
        f"{size.parameters:,}",
        f"{size.nonzeros:,}",
        f"{version.file_bytes / 1e6:.2f}",
        f"{version.macs / 1e6:.1f}",
        f"{1e3 * version.latency.seconds:.2f}",
        "1" if dense else f"{version.latency.ratio:.2f}",
    )
