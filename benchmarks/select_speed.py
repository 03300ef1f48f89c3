"""Exact selection of the smallest weights: secateur's streaming radix selection beside torch.kthvalue and torch.topk.

    python benchmarks/select_speed.py            100 million weights, then one billion (needs 5 GB of memory)
    python benchmarks/select_speed.py --small    10 million weights only

torch gets the concatenation that it needs, made anew in every call, as a program that ranks a model would have to.
All run in one process, in turn, by wall clock on all cores; the ratio is time(torch) / time(secateur).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

import secateur
from secateur.bench.clocks import wall_clock
from secateur.bench.memory import peak_extra_megabytes
from secateur.bench.turns import NULL_CONTROL, time_in_turns
from secateur.weights.rank import Cutoff, find_cutoff

SHARE = 0.9


def main(small: bool) -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, the smallest {SHARE:.0%} of the weights")
    compare_with_torch(10_000_000 if small else 100_000_000)
    if not small:
        measure_alone(1_000_000_000)


def layers_of(weights: int, layers: int = 20) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(weights // layers, generator=generator) for _ in range(layers)]


def compare_with_torch(weights: int) -> None:
    layers = layers_of(weights)
    count = round(SHARE * weights)

    def radix() -> Cutoff:
        return find_cutoff(lambda: layers, count)

    def kthvalue() -> float:
        return float(torch.cat(layers).abs_().kthvalue(count).values)

    def topk() -> float:
        return float(torch.cat(layers).abs_().topk(weights - count + 1).values[-1])

    # Before anything else runs, so that no memory is left over that a second call would reuse.
    peaks = {call.__name__: peak_extra_megabytes(call) for call in (radix, kthvalue, topk)}
    threshold = radix().threshold
    assert threshold == kthvalue() == topk(), "the three must agree to the last bit"
    calls: dict[str, Callable[[], object]] = {"radix": radix, "kthvalue": kthvalue, "topk": topk}
    turns = time_in_turns(calls, clock=wall_clock, min_rounds=6, max_seconds=60)
    print(f"\n{weights:,} weights in {len(layers)} layers ({turns.control.rounds} rounds)")
    for name, timing in {**turns.timings, NULL_CONTROL: turns.control}.items():
        print(f"  {name:<13}{timing.seconds:8.3f} s   {timing} × radix")
    for name, peak in peaks.items():
        print(f"  {name:<13}{beyond_weights(peak):>36}")


def measure_alone(weights: int) -> None:
    layers = layers_of(weights)
    count = round(SHARE * weights)
    started = time.perf_counter()
    peak = peak_extra_megabytes(lambda: find_cutoff(lambda: layers, count))
    seconds = time.perf_counter() - started
    print(f"\n{weights:,} weights in {len(layers)} layers: {seconds:.2f} s, {beyond_weights(peak)}")
    model = torch.nn.Sequential()
    for layer in layers:
        linear = torch.nn.Linear(1, 1, bias=False)
        linear.weight = torch.nn.Parameter(layer.view(-1, 5000))
        model.append(linear)
    masks: list[secateur.Masks] = []
    started = time.perf_counter()
    peak = peak_extra_megabytes(lambda: masks.append(secateur.plan_weights(model, SHARE)))
    seconds = time.perf_counter() - started
    packed = sum(layer.bits.nbytes for layer in masks[0].layers.values()) / 1e6
    print(
        f"  plan_weights: {seconds:.2f} s, {beyond_weights(peak)}, of which {packed:.0f} MB are the masks; "
        f"exactly {masks[0].zeros:,} selected"
    )
    assert masks[0].zeros == count


def beyond_weights(peak: float | None) -> str:
    return "memory not measured" if peak is None else f"{peak:.0f} MB at most beyond the weights"


if __name__ == "__main__":
    main("--small" in sys.argv[1:])
