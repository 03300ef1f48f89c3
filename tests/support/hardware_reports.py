"""Made-up measurements for the tests of `secateur hardware`."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

import secateur
from secateur.base.files import write_text
from secateur.base.records import to_json
from secateur.bench.counts import CountCurve
from secateur.bench.hardware_cache import hardware_file
from secateur.bench.machine import this_machine
from secateur.bench.timing import Timing
from secateur.bench.turns import Turns
from secateur.examples.mobilenet_v2 import MobileNetV2
from secateur.examples.small_resnet import SmallResNet
from secateur.studies.machine.machine_study import MOBILE, Extent
from secateur.studies.machine.structured import Network

TINY = Extent(
    sizes=(32,),
    batches=(1, 4),
    sparsities=(0.5, 0.9, 0.99),
    split_up=(32, 4, 0.9),
    networks=(
        Network("SmallResNet", partial(SmallResNet, (32, 64)), partial(torch.randn, 1, 1, 28, 28)),
        Network(MOBILE, partial(MobileNetV2, (16,) * 7, (1,) * 7, 10), partial(torch.randn, 1, 3, 32, 32)),
    ),
    counts=(32, 33, 34, 36, 40, 48, 64),
    runtimes=("eager",),
)


def timing(ratio: float, half_width: float = 0.01, seconds: float | None = None) -> Timing:
    low, high = ratio - half_width, ratio + half_width
    seconds = ratio * 1e-3 if seconds is None else seconds
    return Timing(seconds, ratio, low, high, 20, seconds, seconds)


class FakeTimer:
    """Makes every call once and keeps what it returned; the i-th of a comparison takes i milliseconds."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, Any]] = []

    def __call__(self, calls: Mapping[str, Callable[[], Any]], *, max_seconds: float, clock: Any = None) -> Turns:
        self.outputs.append({name: call() for name, call in calls.items()})
        return Turns({name: timing(float(i)) for i, name in enumerate(calls, 1)}, timing(1.0))


def save_measured(multiple: int, penalty: float = 2.0) -> None:
    """As `secateur hardware` does, of a machine on which counts off multiples of `multiple` cost `penalty` times as
    much; no more than planning reads of it."""
    curves = []
    for kind in ("convolution", "linear", "depthwise"):
        power = 1 if kind == "depthwise" else 2
        costs = [(1 if n % multiple == 0 else penalty) * n**power * 1e-6 for n in TINY.counts]
        timings = tuple(timing(cost / costs[0], 0.001, cost) for cost in costs)
        curves.append(CountCurve(kind, "eager", TINY.counts, timings, timing(1.0)))
    file = hardware_file(this_machine())
    write_text(file, json.dumps({"version": secateur.__version__, "counts": to_json(tuple(curves))}))
