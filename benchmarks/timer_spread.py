"""How far one comparison differs from the next on a busy machine: secateur's timer beside torch.utils.benchmark.

    python benchmarks/timer_spread.py                 with a busy program for each core beside it, about four minutes
    python benchmarks/timer_spread.py --load 0        on the machine as it is

The truth is known: the alternatives run the same matrix product 20 and 20 times (null), 20 and 21 times (5 % more), or
10 and 30 times (three times as much). Each comparison is repeated ten times; the spread is the range of its ratios over
their median. torch's gets `blocked_autorange` for each alternative, as its documentation shows.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch.utils.benchmark import Timer

import secateur
from secateur.bench.machine import this_machine

REPEATS = 10
CASES = {"null": (20, 20), "5 % more": (20, 21), "3 times": (10, 30)}
ALLOWED = {"null": 0.05, "5 % more": 0.05, "3 times": 0.12}


def main() -> None:
    parser = argparse.ArgumentParser(description="The spread of repeated comparisons under load.")
    parser.add_argument("--load", type=int, default=os.cpu_count(), help="busy programs beside the comparison")
    load = parser.parse_args().load
    torch.set_num_threads(1)
    programs = [multiprocessing.get_context("spawn").Process(target=be_busy, daemon=True) for _ in range(load)]
    for program in programs:
        program.start()
    time.sleep(5 if programs else 0)
    print(f"{load} busy programs; {this_machine()}\n")
    print(f"{'':<10}{'truth':>7}   {'secateur':<30}{'torch.utils.benchmark':<30}")
    for name, (first, second) in CASES.items():
        ours, theirs = repeated(first, second)
        allowed = f"allowed {ALLOWED[name]:.0%}"
        print(f"{name:<10}{second / first:>7.3f}   {summary(ours):<30}{summary(theirs):<30}{allowed}", flush=True)
    for program in programs:
        program.terminate()


def repeated(first: int, second: int) -> tuple[list[float], list[float]]:
    x, weight = torch.randn(64, 256), torch.randn(256, 256)

    def times(count: int) -> Callable[[], None]:
        def call() -> None:
            for _ in range(count):
                torch.mm(x, weight)

        return call

    ours, theirs = [], []
    for _ in range(REPEATS):
        comparison = secateur.compare({"first": times(first), "second": times(second)}, max_seconds=10)
        ours.append(comparison["second"].ratio)
        medians = [Timer("call()", globals={"call": times(count)}).blocked_autorange() for count in (first, second)]
        theirs.append(medians[1].median / medians[0].median)
    return ours, theirs


def summary(ratios: list[float]) -> str:
    middle = statistics.median(ratios)
    return f"{middle:.3f} ({min(ratios):.3f}–{max(ratios):.3f}), {(max(ratios) - min(ratios)) / middle:.1%}"


def be_busy() -> None:
    """Alternates between computing and reading memory, with pauses, as other programs do."""
    torch.set_num_threads(1)
    small, large = torch.randn(256, 256), torch.randn(8_000_000)
    while True:
        until = time.monotonic() + 0.05 + 0.2 * torch.rand(()).item()
        while time.monotonic() < until:
            torch.mm(small, small)
        large.sum()
        time.sleep(0.02 * torch.rand(()).item())


if __name__ == "__main__":
    main()
